-- The users who changed after the change $1, $2 of them at the most, in the order of their changes, and the log.
SELECT log.epoch, log.last_change, log.forgotten, changed.user_name, changed.topics, changed.change
FROM {schema}.subscriptions_log AS log
LEFT JOIN LATERAL (
  SELECT user_name, topics, change FROM {schema}.subscriptions
  WHERE change > $1::bigint ORDER BY change LIMIT $2::bigint
) AS changed ON true
ORDER BY changed.change
