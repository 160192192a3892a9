-- Sessions of MQTT. Each has an owner. A process locks its owner while it is connected, and the next process of the same node
-- becomes this owner.

CREATE TABLE {schema}.history_mqtt_owners (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  -- The name of the node.
  node text COLLATE "C" NOT NULL,
  -- How many processes were this owner, one after the other.
  runs bigint NOT NULL DEFAULT 1,
  -- The epoch of the log in which the sessions have their positions.
  log_epoch bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE {schema}.history_mqtt_sessions (
  owner bigint NOT NULL,
  -- Keys have zero bytes, which text can't have.
  key bytea NOT NULL,
  -- The session as the programs encode it. NULL: only its progress is here.
  session bytea,
  -- Its progress, as the programs encode it.
  progress bytea,
  -- The number of the last progress.
  number bigint NOT NULL,
  PRIMARY KEY (owner, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000);

-- The number of an owner's advisory lock.
CREATE FUNCTION {schema}.history_mqtt_owner_lock(owner bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT hashtextextended('mqtt sessions {schema} ' || owner, 0)
$$;

REVOKE ALL ON FUNCTION {schema}.history_mqtt_owner_lock(bigint) FROM PUBLIC;

-- Makes the caller the owner of an earlier process of this node ("is_earlier") that has ended. If there is none, makes it a new
-- owner with "makes_new", and returns no row without. The database session has the owner's lock until it ends. "locked" are owners
-- whose locks it has already.
CREATE FUNCTION {schema}.history_take_mqtt_owner(node_name text, epoch bigint, locked bigint[], makes_new boolean)
RETURNS TABLE (id bigint, runs bigint, log_epoch bigint, is_earlier boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  owner {schema}.history_mqtt_owners;
BEGIN
  -- The newest first: its sessions are later ones, and stay when those of earlier owners come.
  FOR owner IN SELECT o.* FROM {schema}.history_mqtt_owners AS o WHERE o.node = node_name ORDER BY o.id DESC LOOP
    -- PostgreSQL gives a session a lock again that it has.
    CONTINUE WHEN owner.id = ANY (locked);
    IF pg_try_advisory_lock({schema}.history_mqtt_owner_lock(owner.id)) THEN
      RETURN QUERY UPDATE {schema}.history_mqtt_owners AS o SET runs = o.runs + 1 WHERE o.id = owner.id
      RETURNING o.id, o.runs, o.log_epoch, true;
      IF FOUND THEN
        RETURN;
      END IF;
      -- Another process has deleted it in between.
      PERFORM pg_advisory_unlock({schema}.history_mqtt_owner_lock(owner.id));
    END IF;
  END LOOP;
  IF makes_new THEN
    INSERT INTO {schema}.history_mqtt_owners AS o (node, log_epoch) VALUES (node_name, epoch) RETURNING o.* INTO STRICT owner;
    PERFORM pg_advisory_lock({schema}.history_mqtt_owner_lock(owner.id));
    RETURN QUERY SELECT owner.id, owner.runs, owner.log_epoch, false;
  END IF;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_take_mqtt_owner(text, bigint, bigint[], boolean) FROM PUBLIC;

-- Writes records of an owner's sessions, of different keys. "sets_session" and "sets_progress" say which of the two records
-- change; a session that becomes NULL is deleted. Progress with a lower number than the last one changes nothing. Returns false and writes
-- nothing if another process is the owner by now.
CREATE FUNCTION {schema}.history_save_mqtt_sessions(
  owner_id bigint, owner_runs bigint, keys bytea[], sessions bytea[], progress bytea[], sets_session boolean[],
  sets_progress boolean[], numbers bigint[]
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  -- The process writes in two database sessions: without this lock each could wait for rows of the other.
  PERFORM FROM {schema}.history_mqtt_owners AS o WHERE o.id = owner_id AND o.runs = owner_runs FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  DELETE FROM {schema}.history_mqtt_sessions AS s
  USING unnest(
    history_save_mqtt_sessions.keys, history_save_mqtt_sessions.sessions, history_save_mqtt_sessions.sets_session
  ) AS u (key, session, sets_session)
  WHERE s.owner = owner_id AND s.key = u.key AND u.sets_session AND u.session IS NULL;
  INSERT INTO {schema}.history_mqtt_sessions AS s (owner, key, session, number)
  SELECT owner_id, u.key, u.session, 0
  FROM unnest(
    history_save_mqtt_sessions.keys, history_save_mqtt_sessions.sessions, history_save_mqtt_sessions.sets_session
  ) AS u (key, session, sets_session)
  WHERE u.sets_session AND u.session IS NOT NULL
  ON CONFLICT (owner, key) DO UPDATE SET session = excluded.session;
  INSERT INTO {schema}.history_mqtt_sessions AS s (owner, key, progress, number)
  SELECT owner_id, u.key, u.progress, u.number
  FROM unnest(
    history_save_mqtt_sessions.keys, history_save_mqtt_sessions.sessions, history_save_mqtt_sessions.progress,
    history_save_mqtt_sessions.sets_session, history_save_mqtt_sessions.sets_progress, history_save_mqtt_sessions.numbers
  ) AS u (key, session, progress, sets_session, sets_progress, number)
  WHERE u.sets_progress AND NOT (u.sets_session AND u.session IS NULL)
  ON CONFLICT (owner, key) DO UPDATE SET progress = excluded.progress, number = excluded.number
  WHERE s.number <= excluded.number;
  RETURN true;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_save_mqtt_sessions(
  bigint, bigint, bytea[], bytea[], bytea[], boolean[], boolean[], bigint[]
) FROM PUBLIC;

-- Like history_append_batch, and writes the progress of sessions that published messages of the batch.
CREATE FUNCTION {schema}.history_append_with_sessions(
  writer bigint, batch bigint, known_epoch bigint, known_offset bigint, keys_seconds bigint, names text[], expires_ms bigint[],
  sizes bigint[], records bytea[], keys text[], if_offsets bigint[], messages_max bigint[], bytes_max bigint[], seconds_max bigint[],
  message_keys text[], removals boolean[], compacts boolean[],
  owner_id bigint, owner_runs bigint, session_keys bytea[], progress bytea[], numbers bigint[]
) RETURNS TABLE (epoch bigint, base bigint, through bigint, at_ms bigint, offsets bigint[], outcomes integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
  SELECT * INTO STRICT epoch, base, through, at_ms, offsets, outcomes FROM {schema}.history_append_batch(
    writer, batch, known_epoch, known_offset, keys_seconds, names, expires_ms, sizes, records, keys, if_offsets, messages_max,
    bytes_max, seconds_max, message_keys, removals, compacts
  );
  IF offsets IS NOT NULL AND NOT {schema}.history_save_mqtt_sessions(
    owner_id, owner_runs, session_keys, NULL, progress, array_fill(false, ARRAY[cardinality(session_keys)]),
    array_fill(true, ARRAY[cardinality(session_keys)]), numbers
  ) THEN
    -- The client repeats its message at the new owner, which does not know it.
    RAISE EXCEPTION 'another server has taken over the MQTT sessions of this one';
  END IF;
  RETURN NEXT;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_append_with_sessions(
  bigint, bigint, bigint, bigint, bigint, text[], bigint[], bigint[], bytea[], text[], bigint[], bigint[], bigint[], bigint[], text[],
  boolean[], boolean[], bigint, bigint, bytea[], bytea[], bigint[]
) FROM PUBLIC;

INSERT INTO {schema}.history_migrations (version, usable_from) VALUES (5, 2);
