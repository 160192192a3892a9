-- What was committed after the offset $1 and up to $2: $3 rows and $4 bytes at the most, and one row in any case. Beside
-- them, up to which offset messages of topics that are not compacted may be deleted.
SELECT log.epoch, log.last_offset, (SELECT through FROM {schema}.history_trimmed) AS trimmed,
  found.log_offset, found.at_ms, found.record, topic.name
FROM {schema}.history_log AS log
LEFT JOIN (
  SELECT log_offset, topic_id, at_ms, record,
    sum(coalesce(octet_length(record), 0)) OVER (ORDER BY log_offset ROWS UNBOUNDED PRECEDING) AS bytes
  FROM (
    SELECT log_offset, topic_id, at_ms, record FROM {schema}.history_messages
    WHERE log_offset > $1::bigint AND log_offset <= $2::bigint ORDER BY log_offset LIMIT $3::bigint
  ) AS first
) AS found ON found.bytes <= $4::bigint OR found.bytes = coalesce(octet_length(found.record), 0)
LEFT JOIN {schema}.history_topics AS topic ON topic.id = found.topic_id
ORDER BY found.log_offset
