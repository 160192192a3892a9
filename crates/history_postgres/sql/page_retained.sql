-- The retained messages of topics after the topic $1, $2 of them at the most, by topic.
SELECT r.topic, r.record FROM {schema}.history_mqtt_retained AS r
WHERE r.topic > $1::text AND r.record IS NOT NULL ORDER BY r.topic LIMIT $2::bigint
