-- Messages of the topic $1 after the offset $2 and up to $3, the newest first: $4 rows and $5 bytes at the most, and
-- one row in any case. Beside them, up to which offset the topic's messages are gone, and how many rows there were.
SELECT coalesce(topic.floor, log.forgotten) AS floor, found.log_offset, found.at_ms, found.record, found.count
FROM {schema}.history_log AS log
LEFT JOIN (
  SELECT t.id, {schema}.history_floor(t) AS floor FROM {schema}.history_topics AS t WHERE t.name = $1
) AS topic ON true
LEFT JOIN LATERAL (
  SELECT log_offset, at_ms, record, count(*) OVER () AS count,
    sum(octet_length(record)) OVER (ORDER BY log_offset DESC ROWS UNBOUNDED PRECEDING) AS bytes
  FROM (
    SELECT log_offset, at_ms, record FROM {schema}.history_messages AS m
    WHERE m.topic_id = topic.id AND m.log_offset > greatest($2::bigint, topic.floor) AND m.log_offset <= $3::bigint
      AND m.record IS NOT NULL
      AND coalesce(m.expires_ms > floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint, true)
    ORDER BY m.log_offset DESC LIMIT $4::bigint
  ) AS first
) AS found ON found.bytes <= $5::bigint OR found.bytes = octet_length(found.record)
ORDER BY found.log_offset DESC
