-- The cursors that moved after the change $1, $2 of them at the most, in the order of their changes, and the last change.
SELECT log.last_change, moved.user_name, moved.topic, moved.acknowledged, moved.given_up, moved.change
FROM {schema}.history_cursors_log AS log
LEFT JOIN LATERAL (
  SELECT c.user_name, c.topic, c.acknowledged, c.given_up, c.change FROM {schema}.history_cursors AS c
  WHERE c.change > $1::bigint ORDER BY c.change LIMIT $2::bigint
) AS moved ON true
ORDER BY moved.change
