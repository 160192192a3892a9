-- $1: rows that are done; $2, $3, $4: those of them that were refused, with their codes and reasons.
WITH refused AS (
  INSERT INTO {schema}.outbox_refused (id, uid, created_at, code, reason, message)
  SELECT outbox.id, outbox.uid, outbox.created_at, reasons.code, reasons.reason, outbox.message
  FROM unnest($2::bigint[], $3::text[], $4::text[]) AS reasons(id, code, reason)
  JOIN {schema}.outbox ON outbox.id = reasons.id
), done AS (
  DELETE FROM {schema}.outbox WHERE id = ANY($1::bigint[])
)
SELECT pg_current_xact_id()::text::bigint
