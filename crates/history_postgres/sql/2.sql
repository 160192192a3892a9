-- Compacted topics retain the last message of each key: its state. Rows of messages never change, because PostgreSQL would
-- write their records once more.

-- A session that has a lock for longer must not stop all servers: the migration fails then, and can be tried again.
SET LOCAL lock_timeout = '10s';

-- No server trims meanwhile.
SELECT pg_advisory_xact_lock(1952870439, hashtext('history trim {schema}'));

-- Sessions of servers lock these tables in either order, so this one never waits for one while it has the other.
DO $$
BEGIN
  FOR attempt IN 1..1000 LOOP
    BEGIN
      LOCK TABLE {schema}.history_topics, {schema}.history_messages IN ACCESS EXCLUSIVE MODE NOWAIT;
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      PERFORM pg_sleep(0.01);
    END;
  END LOOP;
  RAISE lock_not_available USING MESSAGE = 'other sessions use the tables of the history without a pause: try again';
END
$$;

-- NULL in messages of servers of the version before: nobody knows whether they have a key.
ALTER TABLE {schema}.history_messages
  ADD COLUMN key text COLLATE "C",
  ADD COLUMN is_removal boolean,
  ADD COLUMN size bigint;

ALTER TABLE {schema}.history_topics
  ADD COLUMN compact boolean NOT NULL DEFAULT false,
  -- When a message came with the rule of a compacted topic for the last time.
  ADD COLUMN last_compact_ms bigint NOT NULL DEFAULT 0,
  -- Messages up to this offset are from before the topic was compacted: rows without a state are to be deleted. 0: none is.
  ADD COLUMN trim_through bigint NOT NULL DEFAULT 0,
  -- Some state up to this offset is gone: by the limits of the rule, by its age, or deleted.
  ADD COLUMN states_floor bigint NOT NULL DEFAULT 0,
  ADD COLUMN states bigint NOT NULL DEFAULT 0,
  ADD COLUMN states_bytes bigint NOT NULL DEFAULT 0;

-- The messages that compacted topics retain. Messages from before the topic was compacted, and of servers of the version
-- before, may have no key: no other one replaces these.
CREATE TABLE {schema}.history_states (
  topic_id bigint NOT NULL,
  log_offset bigint NOT NULL,
  key text COLLATE "C",
  size bigint NOT NULL,
  at_ms bigint NOT NULL,
  -- When the state goes: it expires, or is the removal of its key. NULL: never.
  ends_ms bigint,
  PRIMARY KEY (topic_id, log_offset)
);

CREATE UNIQUE INDEX history_states_by_key ON {schema}.history_states (topic_id, key);

CREATE INDEX history_states_by_end ON {schema}.history_states (ends_ms) WHERE ends_ms IS NOT NULL;

-- Messages of compacted topics that are no state any more since another offset. A server that has delivered less of the
-- log still reads them. They are deleted a minute later.
CREATE TABLE {schema}.history_replaced (
  topic_id bigint NOT NULL,
  log_offset bigint PRIMARY KEY,
  replaced_by bigint NOT NULL,
  replaced_ms bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000);

CREATE INDEX history_replaced_by_topic ON {schema}.history_replaced (topic_id, replaced_by);

CREATE INDEX history_replaced_by_time ON {schema}.history_replaced (replaced_ms);

-- One row. No server has deleted a message after this offset for which a topic has a rule that is not that of a compacted
-- topic: where a server finds later ones deleted that it has not read, others have replaced them.
CREATE TABLE {schema}.history_trimmed (
  is_one boolean PRIMARY KEY DEFAULT true CHECK (is_one),
  through bigint NOT NULL
);

INSERT INTO {schema}.history_trimmed (through) SELECT last_offset FROM {schema}.history_log;

-- The offset up to which a topic has no message that its rule retains.
CREATE FUNCTION {schema}.history_retained_after(topic {schema}.history_topics) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found bigint;
  oldest_ms bigint := floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint - topic.seconds_max * 1000;
BEGIN
  IF topic.compact THEN
    IF oldest_ms <= 0 THEN
      RETURN 0;
    END IF;
    SELECT s.log_offset INTO found FROM {schema}.history_states AS s
    WHERE s.topic_id = topic.id AND s.at_ms >= oldest_ms ORDER BY s.topic_id, s.log_offset LIMIT 1;
    SELECT s.log_offset INTO found FROM {schema}.history_states AS s
    WHERE s.topic_id = topic.id AND s.log_offset < coalesce(found, topic.last_offset + 1)
    ORDER BY s.topic_id DESC, s.log_offset DESC LIMIT 1;
    RETURN coalesce(found, 0);
  END IF;
  SELECT m.previous INTO found FROM {schema}.history_messages AS m
  WHERE m.topic_id = topic.id AND m.record IS NOT NULL
    AND m.sequence > topic.last_sequence - topic.messages_max
    AND (topic.last_total - m.total <= topic.bytes_max OR m.log_offset = topic.last_offset)
    AND m.at_ms >= oldest_ms
  ORDER BY m.log_offset LIMIT 1;
  RETURN greatest(
    coalesce(found, nullif(topic.last_offset, 0), (SELECT forgotten FROM {schema}.history_log)), topic.states_floor
  );
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_retained_after({schema}.history_topics) FROM PUBLIC;

-- The offset up to which some of a topic's messages are gone: by the limits of its rule, by their time, or deleted. A
-- message that another one has replaced is not gone.
CREATE FUNCTION {schema}.history_states_floor(topic {schema}.history_topics, retained_after bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT greatest(retained_after, topic.states_floor, CASE WHEN topic.compact THEN (
    SELECT max(s.log_offset) FROM {schema}.history_states AS s
    WHERE s.topic_id = topic.id AND s.ends_ms <= floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
  ) END)
$$;

REVOKE ALL ON FUNCTION {schema}.history_states_floor({schema}.history_topics, bigint) FROM PUBLIC;

CREATE OR REPLACE FUNCTION {schema}.history_floor(topic {schema}.history_topics) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT {schema}.history_states_floor(topic, {schema}.history_retained_after(topic))
$$;

-- Takes a state from a topic. Called with the lock of the log.
CREATE FUNCTION {schema}.history_drop_state(
  topic {schema}.history_topics, state {schema}.history_states, by_offset bigint, now_ms bigint
) RETURNS {schema}.history_topics
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {schema}.history_states AS s WHERE s.topic_id = topic.id AND s.log_offset = state.log_offset;
  INSERT INTO {schema}.history_replaced (topic_id, log_offset, replaced_by, replaced_ms)
  VALUES (topic.id, state.log_offset, by_offset, now_ms) ON CONFLICT DO NOTHING;
  topic.states := topic.states - 1;
  topic.states_bytes := topic.states_bytes - state.size;
  RETURN topic;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_drop_state({schema}.history_topics, {schema}.history_states, bigint, bigint)
FROM PUBLIC;

-- Drops the oldest states beyond the limits of a topic, but not the last one, and at most 100: appends wait meanwhile, and
-- the next messages drop the rest. `by_offset` is the offset of the message that came. Called with the lock of the log.
CREATE FUNCTION {schema}.history_limit_states(topic {schema}.history_topics, by_offset bigint, now_ms bigint)
RETURNS {schema}.history_topics
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  oldest {schema}.history_states;
BEGIN
  oldest.log_offset := 0;
  FOR n IN 1..100 LOOP
    EXIT WHEN topic.states <= topic.messages_max AND topic.states_bytes <= topic.bytes_max;
    -- Not from the first entry of the index on: this transaction has just deleted those.
    SELECT * INTO oldest FROM {schema}.history_states AS s
    WHERE s.topic_id = topic.id AND s.log_offset > oldest.log_offset AND s.log_offset < by_offset
    ORDER BY s.topic_id, s.log_offset LIMIT 1;
    EXIT WHEN NOT FOUND;
    topic := {schema}.history_drop_state(topic, oldest, by_offset, now_ms);
    topic.states_floor := greatest(topic.states_floor, oldest.log_offset);
  END LOOP;
  RETURN topic;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_limit_states({schema}.history_topics, bigint, bigint) FROM PUBLIC;

-- Makes a topic a compacted one. Its states are the last messages of all keys, as far as its limits allow: of those before
-- the message `by_offset` that its former rule retains. `former` is the topic before the batch, or NULL. Called with the
-- lock of the log.
CREATE FUNCTION {schema}.history_begin_states(
  topic {schema}.history_topics, former {schema}.history_topics, by_offset bigint
) RETURNS {schema}.history_topics
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  day_ms bigint := 86400000;
BEGIN
  SELECT CASE
    WHEN former.id IS NULL THEN l.forgotten
    ELSE least({schema}.history_retained_after(former), by_offset - 1)
  END INTO topic.states_floor FROM {schema}.history_log AS l;
  WITH retained AS MATERIALIZED (
    SELECT r.log_offset, r.key, r.is_removal, r.size, r.at_ms, r.expires_ms,
      row_number() OVER (PARTITION BY r.key ORDER BY r.log_offset DESC) AS of_key
    FROM {schema}.history_messages AS r
    WHERE r.topic_id = topic.id AND r.log_offset > topic.states_floor AND r.log_offset < by_offset AND r.record IS NOT NULL
  ), counted AS MATERIALIZED (
    SELECT l.*,
      row_number() OVER newest_first <= topic.messages_max
        AND sum(l.size) OVER newest_first <= topic.bytes_max AS fits
    FROM retained AS l
    WHERE l.is_removal IS NOT NULL AND (l.key IS NULL OR l.of_key = 1)
    WINDOW newest_first AS (ORDER BY l.log_offset DESC ROWS UNBOUNDED PRECEDING)
  ), inserted AS (
    INSERT INTO {schema}.history_states (topic_id, log_offset, key, size, at_ms, ends_ms)
    SELECT topic.id, c.log_offset, c.key, c.size, c.at_ms,
      least(c.expires_ms, CASE WHEN c.is_removal THEN c.at_ms + day_ms END)
    FROM counted AS c WHERE c.fits
  )
  SELECT count(*) FILTER (WHERE c.fits), coalesce(sum(c.size) FILTER (WHERE c.fits), 0),
    greatest(
      topic.states_floor, max(c.log_offset) FILTER (WHERE NOT c.fits),
      -- A message whose key is unknown is no state.
      (SELECT max(r.log_offset) FROM retained AS r WHERE r.is_removal IS NULL)
    )
  INTO topic.states, topic.states_bytes, topic.states_floor
  FROM counted AS c;
  topic.compact := true;
  topic.trim_through := by_offset - 1;
  -- Servers that still have the former rule lose the messages that are no states.
  UPDATE {schema}.history_trimmed AS t SET through = topic.trim_through WHERE t.through < topic.trim_through;
  RETURN topic;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_begin_states({schema}.history_topics, {schema}.history_topics, bigint)
FROM PUBLIC;

-- Makes a topic one that is not compacted. What was replaced and is still there counts as any other message. Called with the
-- lock of the log.
CREATE FUNCTION {schema}.history_end_states(topic {schema}.history_topics) RETURNS {schema}.history_topics
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {schema}.history_states AS s WHERE s.topic_id = topic.id;
  DELETE FROM {schema}.history_replaced AS r WHERE r.topic_id = topic.id;
  topic.compact := false;
  topic.trim_through := 0;
  topic.states := 0;
  topic.states_bytes := 0;
  RETURN topic;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_end_states({schema}.history_topics) FROM PUBLIC;

-- Writes what a topic has of its states. Called with the lock of the log.
CREATE FUNCTION {schema}.history_save_states(topic {schema}.history_topics) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  UPDATE {schema}.history_topics AS t SET
    compact = topic.compact, last_compact_ms = topic.last_compact_ms, trim_through = topic.trim_through,
    states_floor = topic.states_floor, states = topic.states, states_bytes = topic.states_bytes
  WHERE t.id = topic.id
$$;

REVOKE ALL ON FUNCTION {schema}.history_save_states({schema}.history_topics) FROM PUBLIC;

-- Keeps the states of the compacted topics in a batch, after its messages are appended: `offsets` and `outcomes` are
-- theirs, `former_topics` its topics before it. Called with the lock of the log.
CREATE FUNCTION {schema}.history_compact(
  now_ms bigint, former_topics {schema}.history_topics[], names text[], message_keys text[], removals boolean[],
  compacts boolean[], sizes bigint[], expires_ms bigint[], offsets bigint[], outcomes integer[]
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  topic {schema}.history_topics;
  former {schema}.history_topics;
  other {schema}.history_states;
  item record;
  -- A removed key counts for a day, so that clients that come back learn of the removal.
  day_ms bigint := 86400000;
  -- While servers get a new rule one after the other, messages come with both. For so long the topic stays compacted.
  grace_ms bigint := 300000;
BEGIN
  FOR item IN
    SELECT t.id AS topic_id, i.*, bool_or(i.is_compact) OVER (PARTITION BY t.id) AS any_compact, t.compact
    FROM unnest(names, message_keys, removals, compacts, sizes, expires_ms, offsets, outcomes)
      WITH ORDINALITY AS i (name, message_key, is_removal, is_compact, size, ends_ms, log_offset, outcome, n)
    JOIN {schema}.history_topics AS t ON t.name = i.name
    WHERE i.outcome = 0 ORDER BY t.id, i.n
  LOOP
    CONTINUE WHEN NOT (item.any_compact OR item.compact);
    IF topic.id IS DISTINCT FROM item.topic_id THEN
      PERFORM {schema}.history_save_states(topic);
      SELECT t.* INTO STRICT topic FROM {schema}.history_topics AS t WHERE t.id = item.topic_id;
    END IF;
    IF item.is_compact THEN
      topic.last_compact_ms := now_ms;
      IF NOT topic.compact THEN
        SELECT f.* INTO former FROM unnest(former_topics) AS f WHERE f.id = topic.id;
        former.compact := false;
        topic := {schema}.history_begin_states(topic, former, item.log_offset);
      END IF;
    ELSIF topic.compact THEN
      IF topic.last_compact_ms < now_ms - grace_ms THEN
        topic := {schema}.history_end_states(topic);
      END IF;
      -- Servers with the other rule lose what was replaced.
      UPDATE {schema}.history_trimmed AS t SET through = item.log_offset WHERE t.through < item.log_offset;
    END IF;
    IF topic.compact THEN
      SELECT s.* INTO other FROM {schema}.history_states AS s
      WHERE s.topic_id = topic.id AND s.key = item.message_key;
      IF FOUND THEN
        topic := {schema}.history_drop_state(topic, other, item.log_offset, now_ms);
      END IF;
      INSERT INTO {schema}.history_states (topic_id, log_offset, key, size, at_ms, ends_ms)
      VALUES (
        topic.id, item.log_offset, item.message_key, item.size, now_ms,
        least(item.ends_ms, CASE WHEN item.is_removal THEN now_ms + day_ms END)
      );
      topic.states := topic.states + 1;
      topic.states_bytes := topic.states_bytes + item.size;
      topic := {schema}.history_limit_states(topic, item.log_offset, now_ms);
    END IF;
  END LOOP;
  PERFORM {schema}.history_save_states(topic);
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_compact(
  bigint, {schema}.history_topics[], text[], text[], boolean[], boolean[], bigint[], bigint[], bigint[], integer[]
) FROM PUBLIC;

-- Appends messages, which become one commit, and keeps the states of compacted topics. No topic has an idempotency key
-- twice in a batch, and a message with if_offset is its topic's first in it. Gives for each message its offset and its
-- outcome: 0 appended, 1 there already by its idempotency key (with the offset it has), 2 refused for a newer message
-- (with the offset of that). A batch that is there already gives what it gave then. Where the log has another epoch than
-- the writer's, or ends before an offset that the writer knows, nothing is appended, and the arrays are NULL.
CREATE FUNCTION {schema}.history_append_batch(
  writer bigint, batch bigint, known_epoch bigint, known_offset bigint, keys_seconds bigint, names text[], expires_ms bigint[], sizes bigint[], records bytea[],
  keys text[], if_offsets bigint[], messages_max bigint[], bytes_max bigint[], seconds_max bigint[],
  message_keys text[], removals boolean[], compacts boolean[]
) RETURNS TABLE (epoch bigint, base bigint, through bigint, at_ms bigint, offsets bigint[], outcomes integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  log {schema}.history_log;
  last {schema}.history_writers;
  former_topics {schema}.history_topics[];
  is_compact boolean := true = ANY (history_append_batch.compacts);
  now_ms bigint;
BEGIN
  SELECT * INTO STRICT log FROM {schema}.history_log FOR UPDATE;
  IF log.epoch <> history_append_batch.known_epoch OR log.last_offset < history_append_batch.known_offset THEN
    RETURN QUERY SELECT log.epoch, log.last_offset, log.last_offset, 0::bigint, NULL::bigint[], NULL::integer[];
    RETURN;
  END IF;
  SELECT * INTO last FROM {schema}.history_writers AS w WHERE w.writer = history_append_batch.writer;
  IF last.batch = history_append_batch.batch THEN
    RETURN QUERY SELECT log.epoch, last.base, last.through, last.at_ms, last.offsets, last.outcomes;
    RETURN;
  END IF;
  IF last.batch > history_append_batch.batch THEN
    -- A call of a session that is gone: the writer has given this batch up, and gone on.
    RAISE EXCEPTION 'the batch % is older than the last one of this writer, %', history_append_batch.batch, last.batch;
  END IF;
  now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
  INSERT INTO {schema}.history_topics (name)
  SELECT DISTINCT item.name FROM unnest(history_append_batch.names) AS item (name)
  WHERE NOT EXISTS (SELECT FROM {schema}.history_topics AS t WHERE t.name = item.name);
  IF is_compact THEN
    SELECT array_agg(t) INTO former_topics FROM {schema}.history_topics AS t
    WHERE t.name = ANY (history_append_batch.names) AND t.last_offset > 0;
  END IF;
  WITH item AS MATERIALIZED (
    SELECT i.n, t.id, t.last_offset, t.last_sequence, t.last_total, i.expires_ms, i.size, i.record, i.key,
      i.message_key, i.is_removal,
      i.messages_max, i.bytes_max, i.seconds_max, k.log_offset AS earlier,
      -- Nothing is known of a topic that is new here, but that it may have been forgotten.
      CASE WHEN t.last_offset = 0 AND i.if_offset > 0 THEN log.forgotten ELSE t.last_offset END AS newest,
      CASE
        WHEN k.log_offset IS NOT NULL THEN 1
        WHEN i.if_offset < CASE WHEN t.last_offset = 0 AND i.if_offset > 0 THEN log.forgotten ELSE t.last_offset END THEN 2
        ELSE 0
      END AS outcome
    FROM unnest(
      history_append_batch.names, history_append_batch.expires_ms, history_append_batch.sizes, history_append_batch.records,
      history_append_batch.keys, history_append_batch.if_offsets, history_append_batch.messages_max, history_append_batch.bytes_max,
      history_append_batch.seconds_max, history_append_batch.message_keys, history_append_batch.removals
    ) WITH ORDINALITY AS i (
      name, expires_ms, size, record, key, if_offset, messages_max, bytes_max, seconds_max, message_key, is_removal, n
    )
    JOIN {schema}.history_topics AS t ON t.name = i.name
    LEFT JOIN {schema}.history_keys AS k ON k.topic_id = t.id AND k.key = i.key AND k.expires_ms > now_ms
  ), numbered AS MATERIALIZED (
    SELECT *,
      log.last_offset + count(*) FILTER (WHERE outcome = 0) OVER (ORDER BY n) AS log_offset,
      last_sequence + count(*) OVER topic AS sequence,
      last_total + (sum(size) OVER topic)::bigint - size AS total,
      row_number() OVER (PARTITION BY id, outcome ORDER BY n DESC) AS from_end
    FROM item WINDOW topic AS (PARTITION BY id, outcome ORDER BY n)
  ), inserted AS (
    INSERT INTO {schema}.history_messages
      (log_offset, topic_id, previous, sequence, total, at_ms, expires_ms, record, key, is_removal, size)
    SELECT log_offset, id,
      -- Nothing is known of the messages that a topic without one had before it was forgotten.
      coalesce(lag(log_offset) OVER (PARTITION BY id ORDER BY n), nullif(last_offset, 0), log.forgotten),
      sequence, total, now_ms, expires_ms, record, message_key, is_removal, size
    FROM numbered WHERE outcome = 0
  ), topics AS (
    UPDATE {schema}.history_topics AS t SET
      last_offset = m.log_offset, last_sequence = m.sequence, last_total = m.total + m.size, last_ms = now_ms,
      messages_max = m.messages_max, bytes_max = m.bytes_max, seconds_max = m.seconds_max
    FROM numbered AS m WHERE m.outcome = 0 AND m.from_end = 1 AND t.id = m.id
  ), keyed AS (
    INSERT INTO {schema}.history_keys (topic_id, key, log_offset, expires_ms)
    SELECT id, key, log_offset, now_ms + history_append_batch.keys_seconds * 1000
    FROM numbered WHERE outcome = 0 AND key IS NOT NULL
    ON CONFLICT (topic_id, key) DO UPDATE SET log_offset = excluded.log_offset, expires_ms = excluded.expires_ms
  )
  SELECT
    array_agg(CASE outcome WHEN 0 THEN log_offset WHEN 1 THEN earlier ELSE newest END ORDER BY n),
    array_agg(outcome ORDER BY n),
    coalesce(max(log_offset) FILTER (WHERE outcome = 0), log.last_offset)
  INTO last.offsets, last.outcomes, last.through
  FROM numbered;
  IF is_compact OR EXISTS (
    SELECT FROM {schema}.history_topics AS t WHERE t.compact AND t.name = ANY (history_append_batch.names)
  ) THEN
    PERFORM {schema}.history_compact(
      now_ms, former_topics, history_append_batch.names, history_append_batch.message_keys, history_append_batch.removals,
      history_append_batch.compacts, history_append_batch.sizes, history_append_batch.expires_ms, last.offsets, last.outcomes
    );
  END IF;
  INSERT INTO {schema}.history_writers (writer, batch, base, through, at_ms, offsets, outcomes)
  VALUES (history_append_batch.writer, history_append_batch.batch, log.last_offset, last.through, now_ms, last.offsets, last.outcomes)
  ON CONFLICT (writer) DO UPDATE SET
    batch = excluded.batch, base = excluded.base, through = excluded.through, at_ms = excluded.at_ms,
    offsets = excluded.offsets, outcomes = excluded.outcomes;
  IF last.through > log.last_offset THEN
    UPDATE {schema}.history_log SET last_offset = last.through;
    PERFORM pg_notify('throng_history', '{schema}');
  END IF;
  RETURN QUERY SELECT log.epoch, log.last_offset, last.through, now_ms, last.offsets, last.outcomes;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_append_batch(
  bigint, bigint, bigint, bigint, bigint, text[], bigint[], bigint[], bytea[], text[], bigint[], bigint[], bigint[],
  bigint[], text[], boolean[], boolean[]
) FROM PUBLIC;

-- Servers of the version before call this, as long as their connections last. They know no keys and no compacted topics.
CREATE OR REPLACE FUNCTION {schema}.history_append(
  writer bigint, batch bigint, known_epoch bigint, known_offset bigint, keys_seconds bigint, names text[], expires_ms bigint[], sizes bigint[], records bytea[],
  keys text[], if_offsets bigint[], messages_max bigint[], bytes_max bigint[], seconds_max bigint[]
) RETURNS TABLE (epoch bigint, base bigint, through bigint, at_ms bigint, offsets bigint[], outcomes integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  not_compact boolean[] := array_fill(false, ARRAY[cardinality(names)]);
BEGIN
  RETURN QUERY SELECT * FROM {schema}.history_append_batch(
    writer, batch, known_epoch, known_offset, keys_seconds, names, expires_ms, sizes, records, keys, if_offsets,
    messages_max, bytes_max, seconds_max, NULL::text[], NULL::boolean[], not_compact
  );
END
$$;

-- Deletes what a topic has, and notes it in the log, so that all nodes forget it.
CREATE OR REPLACE FUNCTION {schema}.history_delete(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  log {schema}.history_log;
  topic {schema}.history_topics;
BEGIN
  SELECT * INTO topic FROM {schema}.history_topics AS t WHERE t.name = history_delete.name;
  IF topic.id IS NULL THEN
    RETURN;
  END IF;
  -- The most is done before others have to wait.
  DELETE FROM {schema}.history_messages WHERE topic_id = topic.id AND log_offset <= topic.last_offset;
  SELECT * INTO STRICT log FROM {schema}.history_log FOR UPDATE;
  DELETE FROM {schema}.history_messages WHERE topic_id = topic.id;
  SELECT * INTO topic FROM {schema}.history_topics AS t WHERE t.name = history_delete.name;
  IF topic.id IS NULL THEN
    RETURN;
  END IF;
  INSERT INTO {schema}.history_messages (log_offset, topic_id, previous, sequence, total, at_ms)
  VALUES (
    log.last_offset + 1, topic.id, topic.last_offset, topic.last_sequence, topic.last_total,
    floor(extract(epoch FROM clock_timestamp()) * 1000)
  );
  DELETE FROM {schema}.history_states WHERE topic_id = topic.id;
  UPDATE {schema}.history_trimmed SET through = greatest(through, topic.last_offset);
  UPDATE {schema}.history_topics AS t SET states_floor = t.last_offset, states = 0, states_bytes = 0, trim_through = 0
  WHERE t.id = topic.id AND t.compact;
  UPDATE {schema}.history_log SET last_offset = log.last_offset + 1;
  PERFORM pg_notify('throng_history', '{schema}');
END
$$;

-- Deletes messages that the rules of some topics no longer retain, once they are a tenth of what they do, and that are
-- older than an age: those of the topics after an id. Gives the last id (NULL at the end), how many messages it
-- deleted, and the topics that had none for a day. Gives no row while another session does it. It waits for no lock
-- that an append has, and has none that an append needs. Other functions trim compacted topics.
CREATE OR REPLACE FUNCTION {schema}.history_trim(after bigint, topics_max bigint, rows_max bigint, age_ms bigint)
RETURNS TABLE (last_id bigint, deleted bigint, empty bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  topic {schema}.history_topics;
  oldest {schema}.history_messages;
  now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
  before_ms bigint := now_ms - age_ms;
  day_ms bigint := 86400000;
  scanned bigint := 0;
  part bigint;
  trimmed bigint;
BEGIN
  IF NOT pg_try_advisory_xact_lock(1952870439, hashtext('history trim {schema}')) THEN
    RETURN;
  END IF;
  deleted := 0;
  empty := '{}';
  FOR topic IN
    SELECT * FROM {schema}.history_topics AS t WHERE t.id > after ORDER BY t.id LIMIT topics_max
  LOOP
    scanned := scanned + 1;
    last_id := topic.id;
    SELECT * INTO oldest FROM {schema}.history_messages AS m WHERE m.topic_id = topic.id ORDER BY m.log_offset LIMIT 1;
    IF NOT FOUND THEN
      IF topic.last_ms < now_ms - day_ms THEN
        empty := empty || topic.id;
      END IF;
    ELSIF oldest.record IS NULL AND oldest.at_ms < now_ms - day_ms THEN
      DELETE FROM {schema}.history_messages AS m WHERE m.log_offset = oldest.log_offset;
    ELSIF NOT topic.compact AND oldest.at_ms < before_ms AND (
      topic.last_sequence - oldest.sequence >= topic.messages_max + topic.messages_max / 10
      OR topic.last_total - oldest.total > topic.bytes_max + topic.bytes_max / 10
      OR oldest.at_ms < now_ms - topic.seconds_max * 1000
    ) THEN
      WITH gone AS (
        DELETE FROM {schema}.history_messages AS d WHERE d.log_offset IN (
          SELECT m.log_offset FROM {schema}.history_messages AS m
          WHERE m.topic_id = topic.id AND m.log_offset <= {schema}.history_floor(topic) AND m.at_ms < before_ms
            -- The topic may have become a compacted one meanwhile.
            AND NOT EXISTS (
              SELECT FROM {schema}.history_states AS s WHERE s.topic_id = m.topic_id AND s.log_offset = m.log_offset
            )
          ORDER BY m.log_offset LIMIT rows_max
        ) RETURNING d.log_offset
      )
      SELECT count(*), greatest(max(gone.log_offset), trimmed) INTO part, trimmed FROM gone;
      deleted := deleted + part;
      IF part >= rows_max THEN
        -- The topic may have more of them.
        last_id := topic.id - 1;
      END IF;
    END IF;
    EXIT WHEN deleted >= rows_max;
  END LOOP;
  IF scanned < topics_max AND deleted < rows_max THEN
    last_id := NULL;
  END IF;
  UPDATE {schema}.history_trimmed AS t SET through = trimmed WHERE t.through < trimmed;
  RETURN NEXT;
END
$$;

-- Deletes messages of compacted topics that have been no state for an age. Gives how many rows of history_replaced went with
-- them. It waits for no lock of an append. Only an append that ends the compaction of a topic waits for its locks.
CREATE FUNCTION {schema}.history_trim_replaced(rows_max bigint, age_ms bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - age_ms;
  old bigint[];
  deleted bigint;
BEGIN
  SELECT array_agg(o.log_offset) INTO old FROM (
    SELECT r.log_offset FROM {schema}.history_replaced AS r
    WHERE r.replaced_ms <= before_ms ORDER BY r.replaced_ms LIMIT rows_max FOR UPDATE SKIP LOCKED
  ) AS o;
  DELETE FROM {schema}.history_messages AS m WHERE m.log_offset IN (
    SELECT f.log_offset FROM {schema}.history_messages AS f WHERE f.log_offset = ANY (old) FOR UPDATE SKIP LOCKED
  );
  -- A message that another session has locked is for the next time.
  DELETE FROM {schema}.history_replaced AS r WHERE r.log_offset = ANY (old)
    AND NOT EXISTS (SELECT FROM {schema}.history_messages AS m WHERE m.log_offset = r.log_offset);
  GET DIAGNOSTICS deleted = ROW_COUNT;
  RETURN deleted;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_trim_replaced(bigint, bigint) FROM PUBLIC;

-- Drops states whose time is over: by the age of the rule, for the topics after an id and up to another one; of all topics
-- by their own time, or because they removed a key a day ago. Gives how many states it found, at most twice rows_max. It
-- finds them before it locks the log.
CREATE FUNCTION {schema}.history_trim_states(after bigint, through_id bigint, rows_max bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  topic {schema}.history_topics;
  state {schema}.history_states;
  due {schema}.history_states[];
  now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
BEGIN
  SELECT array_agg(f.s ORDER BY (f.s).topic_id, (f.s).log_offset) INTO due FROM (
    (SELECT s
     FROM {schema}.history_topics AS t, {schema}.history_retained_after(t) AS b (retained_after),
       {schema}.history_states AS s
     WHERE t.id > after AND t.id <= through_id AND t.compact AND s.topic_id = t.id AND s.log_offset <= b.retained_after
     LIMIT rows_max)
    UNION
    (SELECT s FROM {schema}.history_states AS s WHERE s.ends_ms <= now_ms ORDER BY s.ends_ms LIMIT rows_max)
  ) AS f;
  IF due IS NULL THEN
    RETURN 0;
  END IF;
  PERFORM FROM {schema}.history_log FOR UPDATE;
  FOREACH state IN ARRAY due LOOP
    -- An append may have replaced it meanwhile.
    CONTINUE WHEN NOT EXISTS (
      SELECT FROM {schema}.history_states AS s WHERE s.topic_id = state.topic_id AND s.log_offset = state.log_offset
    );
    IF topic.id IS DISTINCT FROM state.topic_id THEN
      PERFORM {schema}.history_save_states(topic);
      SELECT t.* INTO STRICT topic FROM {schema}.history_topics AS t WHERE t.id = state.topic_id;
    END IF;
    -- Whoever has read the log up to the state itself has it no more.
    topic := {schema}.history_drop_state(topic, state, state.log_offset, now_ms);
    topic.states_floor := greatest(topic.states_floor, state.log_offset);
  END LOOP;
  PERFORM {schema}.history_save_states(topic);
  RETURN cardinality(due);
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_trim_states(bigint, bigint, bigint) FROM PUBLIC;

-- Deletes messages without a state that are from before their topics were compacted, once all of a topic are older than an
-- age: for the topics after an id and up to another one. Gives the number of these messages, and of topics that have none
-- any more, at most rows_max. It finds them before it locks the log.
CREATE FUNCTION {schema}.history_trim_uncompacted(after bigint, through_id bigint, rows_max bigint, age_ms bigint)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  topic {schema}.history_topics;
  of_topic bigint[];
  due bigint[] := '{}';
  ready {schema}.history_topics[] := '{}';
  deleted bigint;
  before_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - age_ms;
BEGIN
  FOR topic IN
    SELECT t.* FROM {schema}.history_topics AS t
    WHERE t.id > after AND t.id <= through_id AND t.compact AND t.trim_through > 0 AND coalesce((
      SELECT m.at_ms FROM {schema}.history_messages AS m
      WHERE m.topic_id = t.id AND m.log_offset <= t.trim_through ORDER BY m.topic_id DESC, m.log_offset DESC LIMIT 1
    ) <= before_ms, true) ORDER BY t.id
  LOOP
    SELECT array_agg(o.log_offset) INTO of_topic FROM (
      SELECT m.log_offset FROM {schema}.history_messages AS m
      WHERE m.topic_id = topic.id AND m.log_offset <= topic.trim_through AND m.record IS NOT NULL
        -- OFFSET 0: each is one look into an index, also before the tables have statistics.
        AND NOT EXISTS (
          SELECT FROM {schema}.history_states AS s WHERE s.topic_id = m.topic_id AND s.log_offset = m.log_offset OFFSET 0
        )
        AND NOT EXISTS (SELECT FROM {schema}.history_replaced AS r WHERE r.log_offset = m.log_offset OFFSET 0)
      ORDER BY m.topic_id, m.log_offset LIMIT rows_max - cardinality(due)
    ) AS o;
    IF of_topic IS NULL THEN
      ready := ready || topic;
    ELSE
      due := due || of_topic;
    END IF;
    EXIT WHEN cardinality(due) + cardinality(ready) >= rows_max;
  END LOOP;
  IF due = '{}' AND ready = '{}' THEN
    RETURN 0;
  END IF;
  PERFORM FROM {schema}.history_log FOR UPDATE;
  -- An append may have made the topic another one meanwhile.
  UPDATE {schema}.history_topics AS t SET trim_through = 0 FROM unnest(ready) AS r
  WHERE t.id = r.id AND t.trim_through = r.trim_through;
  DELETE FROM {schema}.history_messages AS d WHERE d.log_offset IN (
    SELECT m.log_offset FROM {schema}.history_messages AS m
    JOIN {schema}.history_topics AS t ON t.id = m.topic_id AND t.compact AND m.log_offset <= t.trim_through
    WHERE m.log_offset = ANY (due) AND NOT EXISTS (
      SELECT FROM {schema}.history_states AS s WHERE s.topic_id = m.topic_id AND s.log_offset = m.log_offset OFFSET 0
    )
    FOR UPDATE OF m SKIP LOCKED
  );
  GET DIAGNOSTICS deleted = ROW_COUNT;
  RETURN deleted + cardinality(ready);
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_trim_uncompacted(bigint, bigint, bigint, bigint) FROM PUBLIC;

INSERT INTO {schema}.history_migrations (version) VALUES (2);
