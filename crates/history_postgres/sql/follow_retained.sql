-- The retained messages that changed after the change $1, $2 of them at the most, in the order of their changes, and the
-- last change.
SELECT log.last_change, log.forgotten, changed.topic, changed.record, changed.change
FROM {schema}.history_mqtt_retained_log AS log
LEFT JOIN LATERAL (
  SELECT r.topic, r.record, r.change FROM {schema}.history_mqtt_retained AS r
  WHERE r.change > $1::bigint ORDER BY r.change LIMIT $2::bigint
) AS changed ON true
ORDER BY changed.change
