-- The offset of the $3th message of the topic $1 from its end, of those up to the offset $2; nothing where there are
-- fewer.
SELECT m.log_offset
FROM (
  SELECT t.id, {schema}.history_floor(t) AS floor FROM {schema}.history_topics AS t WHERE t.name = $1
) AS topic
JOIN {schema}.history_messages AS m ON m.topic_id = topic.id AND m.log_offset > topic.floor
WHERE m.log_offset <= $2::bigint AND m.record IS NOT NULL
  AND coalesce(m.expires_ms > floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint, true)
ORDER BY m.log_offset DESC OFFSET $3::bigint - 1 LIMIT 1
