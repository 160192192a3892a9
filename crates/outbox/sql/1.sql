CREATE TABLE {schema}.outbox_migrations (
  version integer PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A row is a message that waits to be published: {"publish":{"topic":…,"data":…}}, as a command of POST /api/batch.
CREATE TABLE {schema}.outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  uid uuid NOT NULL DEFAULT gen_random_uuid(),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  message jsonb NOT NULL,
  bytes integer NOT NULL GENERATED ALWAYS AS (octet_length(message::text)) STORED,
  CONSTRAINT message_too_large CHECK (bytes <= 67108864)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- Rows that can't be published, with the reason.
CREATE TABLE {schema}.outbox_refused (
  id bigint PRIMARY KEY,
  uid uuid NOT NULL,
  created_at timestamptz NOT NULL,
  refused_at timestamptz NOT NULL DEFAULT now(),
  code text NOT NULL,
  reason text NOT NULL,
  message jsonb NOT NULL
);

CREATE INDEX outbox_refused_by_time ON {schema}.outbox_refused (refused_at, id);

-- Every insert goes through here. The transaction has its number before the row has its own: so a node can tell
-- from the oldest transaction that runs which rows may still appear.
CREATE FUNCTION {schema}.outbox_insert(message jsonb) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  inserted bigint;
BEGIN
  PERFORM pg_current_xact_id();
  INSERT INTO {schema}.outbox (message) VALUES (outbox_insert.message) RETURNING id INTO inserted;
  RETURN inserted;
END
$$;

REVOKE ALL ON FUNCTION {schema}.outbox_insert(jsonb) FROM PUBLIC;

CREATE FUNCTION {schema}.publish(
  topic text, data jsonb, event text DEFAULT NULL, idempotency_key text DEFAULT NULL, key text DEFAULT NULL,
  tags text[] DEFAULT NULL, sender text DEFAULT NULL, ttl_seconds double precision DEFAULT NULL,
  no_history boolean DEFAULT NULL, encoding text DEFAULT NULL, mqtt jsonb DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF topic IS NULL OR data IS NULL THEN
    RAISE null_value_not_allowed USING MESSAGE = '{schema}.publish needs a topic and data', HINT = 'For JSON''s null write ''null''.';
  END IF;
  RETURN {schema}.outbox_insert(jsonb_build_object('publish', jsonb_strip_nulls(jsonb_build_object(
    'event', event, 'idempotency_key', idempotency_key, 'key', key, 'tags', tags, 'sender', sender,
    'ttl_seconds', ttl_seconds, 'no_history', no_history, 'encoding', encoding, 'mqtt', mqtt
  )) || jsonb_build_object('topic', topic, 'data', data)));
END
$$;

COMMENT ON FUNCTION {schema}.publish IS 'Publishes a message to a topic when the transaction commits, as POST /api/publish of Throng.';

CREATE FUNCTION {schema}.send(
  "user" text, data jsonb, event text DEFAULT NULL, idempotency_key text DEFAULT NULL, key text DEFAULT NULL,
  tags text[] DEFAULT NULL, sender text DEFAULT NULL, ttl_seconds double precision DEFAULT NULL,
  no_history boolean DEFAULT NULL, encoding text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF "user" IS NULL OR data IS NULL THEN
    RAISE null_value_not_allowed USING MESSAGE = '{schema}.send needs a user and data', HINT = 'For JSON''s null write ''null''.';
  END IF;
  RETURN {schema}.outbox_insert(jsonb_build_object('send', jsonb_strip_nulls(jsonb_build_object(
    'event', event, 'idempotency_key', idempotency_key, 'key', key, 'tags', tags, 'sender', sender,
    'ttl_seconds', ttl_seconds, 'no_history', no_history, 'encoding', encoding
  )) || jsonb_build_object('user', "user", 'data', data)));
END
$$;

COMMENT ON FUNCTION {schema}.send IS 'Sends a message to all connections of a user when the transaction commits, as POST /api/send of Throng.';

CREATE FUNCTION {schema}.broadcast(
  data jsonb, event text DEFAULT NULL, sender text DEFAULT NULL, encoding text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF data IS NULL THEN
    RAISE null_value_not_allowed USING MESSAGE = '{schema}.broadcast needs data', HINT = 'For JSON''s null write ''null''.';
  END IF;
  RETURN {schema}.outbox_insert(jsonb_build_object('broadcast', jsonb_strip_nulls(jsonb_build_object(
    'event', event, 'sender', sender, 'encoding', encoding
  )) || jsonb_build_object('data', data)));
END
$$;

COMMENT ON FUNCTION {schema}.broadcast IS 'Sends a message to every connection when the transaction commits, as POST /api/broadcast of Throng.';

-- For operators, to whom the owner grants it.
CREATE FUNCTION {schema}.outbox_retry(refused_id bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  again jsonb;
BEGIN
  DELETE FROM {schema}.outbox_refused WHERE id = refused_id RETURNING message INTO again;
  IF again IS NULL THEN
    RAISE no_data_found USING MESSAGE = format('no refused row has the id %s', refused_id);
  END IF;
  RETURN {schema}.outbox_insert(again);
END
$$;

REVOKE ALL ON FUNCTION {schema}.outbox_retry(bigint) FROM PUBLIC;

COMMENT ON FUNCTION {schema}.outbox_retry IS 'Puts a row of outbox_refused back into the outbox, behind all others, and gives its new id.';

INSERT INTO {schema}.outbox_migrations (version) VALUES (1);
