-- Messages of the topic $1 after the offset $2 and up to $3, the newest first: $4 rows and $5 bytes at the most, and
-- one row in any case. Beside them, up to which offset some of its messages are gone, and how many rows there
-- were. The server has delivered the log up to $6: what a later message replaces is still there.
SELECT coalesce(topic.floor, log.forgotten) AS floor,
  found.log_offset, found.at_ms, found.record, found.count
FROM {schema}.history_log AS log
LEFT JOIN (
  SELECT t.id, t.compact, greatest($2::bigint, b.retained_after) AS after, {schema}.history_states_floor(t, b.retained_after) AS floor
  FROM {schema}.history_topics AS t CROSS JOIN LATERAL {schema}.history_retained_after(t) AS b (retained_after) WHERE t.name = $1
) AS topic ON true
CROSS JOIN LATERAL (SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS ms) AS now
LEFT JOIN LATERAL (
  SELECT log_offset, at_ms, record, count(*) OVER () AS count,
    sum(octet_length(record)) OVER (ORDER BY log_offset DESC ROWS UNBOUNDED PRECEDING) AS bytes
  FROM (
    (
      SELECT m.log_offset, m.at_ms, m.record FROM {schema}.history_messages AS m
      WHERE NOT topic.compact AND m.topic_id = topic.id AND m.log_offset > topic.after AND m.log_offset <= $3::bigint
        AND m.record IS NOT NULL AND coalesce(m.expires_ms > now.ms, true)
      ORDER BY m.log_offset DESC LIMIT $4::bigint
    ) UNION ALL (
      SELECT m.log_offset, m.at_ms, m.record FROM (
        (
          SELECT s.log_offset FROM {schema}.history_states AS s
          WHERE s.topic_id = topic.id AND s.log_offset > topic.after AND s.log_offset <= $3::bigint
            AND coalesce(s.ends_ms > now.ms, true)
          ORDER BY s.topic_id DESC, s.log_offset DESC LIMIT $4::bigint
        ) UNION ALL (
          SELECT r.log_offset FROM {schema}.history_replaced AS r
          WHERE r.topic_id = topic.id AND r.replaced_by > $6::bigint
            AND r.log_offset > topic.after AND r.log_offset <= $3::bigint
        )
      ) AS state JOIN {schema}.history_messages AS m ON m.log_offset = state.log_offset
      WHERE topic.compact AND m.record IS NOT NULL AND coalesce(m.expires_ms > now.ms, true)
      ORDER BY m.log_offset DESC LIMIT $4::bigint
    )
    ORDER BY log_offset DESC LIMIT $4::bigint
  ) AS first
) AS found ON found.bytes <= $5::bigint OR found.bytes = octet_length(found.record)
ORDER BY found.log_offset DESC
