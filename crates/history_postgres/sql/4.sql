-- Retained messages of MQTT: the last message of each topic that was published to be retained.

-- One row. A transaction that writes rows locks it until it commits, so that changes are numbered in the order of commits.
CREATE TABLE {schema}.history_mqtt_retained_log (
  is_one boolean PRIMARY KEY DEFAULT true CHECK (is_one),
  last_change bigint NOT NULL DEFAULT 0,
  -- Rows of removed and expired messages are deleted up to this change: a node that knows less reads all rows.
  forgotten bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

INSERT INTO {schema}.history_mqtt_retained_log DEFAULT VALUES;

CREATE TABLE {schema}.history_mqtt_retained (
  topic text COLLATE "C" PRIMARY KEY,
  -- The message as the programs encode it. NULL: it was removed.
  record bytea,
  -- When it expires, in milliseconds since 1970.
  expires_ms bigint,
  -- Messages of the log up to this offset are older.
  log_offset bigint NOT NULL,
  -- The number of the row's last change.
  change bigint NOT NULL UNIQUE,
  changed_ms bigint NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000);

CREATE INDEX history_mqtt_retained_removed ON {schema}.history_mqtt_retained (changed_ms) WHERE record IS NULL;
CREATE INDEX history_mqtt_retained_expiring ON {schema}.history_mqtt_retained (expires_ms) WHERE expires_ms IS NOT NULL;

-- Writes the rows of different topics. A NULL record removes a message. A write with a log offset changes no row that has
-- the same or a later offset, unless the log has lost that offset: every node writes the messages of the log. A write that
-- yields changes no row; with a log offset it counts as one before that offset, so that a node without capacity for
-- a message removes the earlier one, and a node with capacity writes the message. Returns the topics whose write was rejected,
-- and their records.
CREATE FUNCTION {schema}.history_mqtt_retain(
  topics text[], records bytea[], expires_ms bigint[], log_offsets bigint[], yields boolean[]
) RETURNS TABLE (rejecting_topics text[], rejecting_records bytea[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  former bigint;
  newest bigint;
  written bigint;
BEGIN
  SELECT l.last_change INTO STRICT former FROM {schema}.history_mqtt_retained_log AS l FOR UPDATE;
  SELECT l.last_offset INTO STRICT newest FROM {schema}.history_log AS l;
  WITH item AS MATERIALIZED (
    SELECT u.n, u.topic, u.record, u.expires_ms, coalesce(u.log_offset - u.yields::integer, newest) AS log_offset, r.record AS old_record,
      CASE
        WHEN r.topic IS NULL THEN u.record IS NOT NULL OR u.log_offset IS NOT NULL
        WHEN u.log_offset IS NULL THEN NOT u.yields
        ELSE u.log_offset > r.log_offset OR r.log_offset > newest
      END AS is_accepted
    FROM unnest(
      history_mqtt_retain.topics, history_mqtt_retain.records, history_mqtt_retain.expires_ms, history_mqtt_retain.log_offsets,
      history_mqtt_retain.yields
    ) WITH ORDINALITY AS u (topic, record, expires_ms, log_offset, yields, n)
    LEFT JOIN {schema}.history_mqtt_retained AS r ON r.topic = u.topic
  ), changed AS (
    INSERT INTO {schema}.history_mqtt_retained AS r (topic, record, expires_ms, log_offset, change, changed_ms)
    SELECT i.topic, i.record, i.expires_ms, i.log_offset, former + row_number() OVER (ORDER BY i.n),
      floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
    FROM item AS i WHERE i.is_accepted
    ON CONFLICT (topic) DO UPDATE SET
      record = excluded.record, expires_ms = excluded.expires_ms, log_offset = excluded.log_offset,
      change = excluded.change, changed_ms = excluded.changed_ms
    RETURNING r.change
  )
  SELECT
    (SELECT coalesce(array_agg(i.topic ORDER BY i.n), '{}') FROM item AS i WHERE NOT i.is_accepted),
    (SELECT coalesce(array_agg(i.old_record ORDER BY i.n), '{}') FROM item AS i WHERE NOT i.is_accepted),
    (SELECT count(*) FROM changed)
  INTO rejecting_topics, rejecting_records, written;
  IF written > 0 THEN
    UPDATE {schema}.history_mqtt_retained_log AS l SET last_change = l.last_change + written;
    PERFORM pg_notify('throng_retained', '{schema}');
  END IF;
  RETURN NEXT;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_mqtt_retain(text[], bytea[], bigint[], bigint[], boolean[]) FROM PUBLIC;

-- Deletes rows of messages that were removed a day ago or expired an hour ago, at most rows_max of each kind. Returns the
-- larger of the two counts. Raises "forgotten", because a node that was away may still have an earlier message.
CREATE FUNCTION {schema}.history_trim_mqtt_retained(rows_max bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;
  last_deleted bigint;
  deleted bigint;
  expired bigint;
BEGIN
  IF NOT EXISTS (
    SELECT FROM {schema}.history_mqtt_retained AS r WHERE r.record IS NULL AND r.changed_ms < now_ms - 86400000
  ) AND NOT EXISTS (
    SELECT FROM {schema}.history_mqtt_retained AS r WHERE r.expires_ms IS NOT NULL AND r.expires_ms < now_ms - 3600000
  ) THEN
    RETURN 0;
  END IF;
  PERFORM FROM {schema}.history_mqtt_retained_log FOR UPDATE;
  WITH gone AS (
    DELETE FROM {schema}.history_mqtt_retained AS d WHERE d.topic IN (
      SELECT r.topic FROM {schema}.history_mqtt_retained AS r
      WHERE r.record IS NULL AND r.changed_ms < now_ms - 86400000 ORDER BY r.changed_ms LIMIT rows_max
    ) RETURNING d.change
  )
  SELECT max(g.change), count(*) INTO last_deleted, deleted FROM gone AS g;
  UPDATE {schema}.history_mqtt_retained_log SET forgotten = greatest(forgotten, last_deleted) WHERE deleted > 0;
  WITH gone AS (
    DELETE FROM {schema}.history_mqtt_retained AS d WHERE d.topic IN (
      SELECT r.topic FROM {schema}.history_mqtt_retained AS r
      WHERE r.expires_ms IS NOT NULL AND r.expires_ms < now_ms - 3600000 ORDER BY r.expires_ms LIMIT rows_max
    ) RETURNING d.change
  )
  SELECT max(g.change), count(*) INTO last_deleted, expired FROM gone AS g;
  UPDATE {schema}.history_mqtt_retained_log SET forgotten = greatest(forgotten, last_deleted) WHERE expired > 0;
  RETURN greatest(deleted, expired);
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_trim_mqtt_retained(bigint) FROM PUBLIC;

INSERT INTO {schema}.history_migrations (version, usable_from) VALUES (4, 2);
