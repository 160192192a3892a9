-- $1: the id above which rows are read; $2: rows, $3: bytes of one row, $4: bytes of all at the most.
SELECT
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
  batch.id,
  batch.uid::text,
  CASE WHEN batch.bytes <= $3::bigint THEN batch.message::text END AS message,
  batch.bytes,
  greatest(extract(epoch FROM clock_timestamp() - batch.created_at)::double precision, 0) AS age
FROM (SELECT) AS snapshot
LEFT JOIN (
  SELECT id, uid, message, bytes, created_at,
    sum(CASE WHEN bytes <= $3::bigint THEN bytes ELSE 0 END) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS total
  FROM (
    SELECT id, uid, message, bytes, created_at FROM {schema}.outbox WHERE id > $1::bigint ORDER BY id LIMIT $2::bigint
  ) AS first
) AS batch ON batch.total <= $4::bigint OR batch.total = batch.bytes
ORDER BY batch.id
