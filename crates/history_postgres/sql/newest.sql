-- The offset of the $3th message of the topic $1 from its end, of those up to the offset $2; nothing where there are
-- fewer.
SELECT found.log_offset
FROM (
  SELECT t.id, t.compact, {schema}.history_retained_after(t) AS retained_after FROM {schema}.history_topics AS t WHERE t.name = $1
) AS topic
CROSS JOIN LATERAL (SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS ms) AS now
CROSS JOIN LATERAL (
  (
    SELECT m.log_offset FROM {schema}.history_messages AS m
    WHERE NOT topic.compact AND m.topic_id = topic.id AND m.log_offset > topic.retained_after AND m.log_offset <= $2::bigint
      AND m.record IS NOT NULL AND coalesce(m.expires_ms > now.ms, true)
    ORDER BY m.log_offset DESC LIMIT $3::bigint
  ) UNION ALL (
    SELECT s.log_offset FROM {schema}.history_states AS s
    WHERE topic.compact AND s.topic_id = topic.id AND s.log_offset > topic.retained_after AND s.log_offset <= $2::bigint
      AND coalesce(s.ends_ms > now.ms, true)
    ORDER BY s.topic_id DESC, s.log_offset DESC LIMIT $3::bigint
  ) UNION ALL (
    SELECT r.log_offset FROM {schema}.history_replaced AS r
    JOIN {schema}.history_messages AS m ON m.log_offset = r.log_offset
    WHERE topic.compact AND r.topic_id = topic.id AND r.replaced_by > $2::bigint
      AND r.log_offset > topic.retained_after AND r.log_offset <= $2::bigint
      AND m.record IS NOT NULL AND coalesce(m.expires_ms > now.ms, true)
  )
) AS found
ORDER BY found.log_offset DESC OFFSET $3::bigint - 1 LIMIT 1
