-- $1: refused rows at the most; the oldest go.
DELETE FROM {schema}.outbox_refused WHERE id IN (
  SELECT id FROM {schema}.outbox_refused ORDER BY refused_at DESC, id DESC OFFSET $1::bigint
)
