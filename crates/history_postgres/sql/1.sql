CREATE TABLE {schema}.history_migrations (
  version integer PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row. Whoever appends locks it until the commit, so that offsets are in the order of commits.
CREATE TABLE {schema}.history_log (
  is_one boolean PRIMARY KEY DEFAULT true CHECK (is_one),
  epoch bigint NOT NULL,
  last_offset bigint NOT NULL DEFAULT 0,
  -- No topic that has no row had a message after this offset.
  forgotten bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

INSERT INTO {schema}.history_log (epoch) VALUES (1 + floor(random() * 4294967294)::bigint);

-- The limits are those of the rule that came with the topic's last message.
CREATE TABLE {schema}.history_topics (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  last_offset bigint NOT NULL DEFAULT 0,
  last_sequence bigint NOT NULL DEFAULT 0,
  last_total bigint NOT NULL DEFAULT 0,
  last_ms bigint NOT NULL DEFAULT 0,
  messages_max bigint NOT NULL DEFAULT 0,
  bytes_max bigint NOT NULL DEFAULT 0,
  seconds_max bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE {schema}.history_messages (
  log_offset bigint PRIMARY KEY,
  topic_id bigint NOT NULL,
  -- The offset of the topic's message before, also where that is gone.
  previous bigint NOT NULL,
  -- The number of the topic's messages, and their bytes without this one: what is retained follows from these.
  sequence bigint NOT NULL,
  total bigint NOT NULL,
  at_ms bigint NOT NULL,
  expires_ms bigint,
  -- NULL: all messages of the topic before this one were deleted.
  record bytea
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000);

CREATE INDEX history_messages_by_topic ON {schema}.history_messages (topic_id, log_offset);

CREATE TABLE {schema}.history_keys (
  topic_id bigint NOT NULL,
  key text COLLATE "C" NOT NULL,
  log_offset bigint NOT NULL,
  expires_ms bigint NOT NULL,
  PRIMARY KEY (topic_id, key)
);

CREATE INDEX history_keys_by_expiry ON {schema}.history_keys (expires_ms);

-- The last batch of each process, so that one whose reply was lost can be sent again.
CREATE TABLE {schema}.history_writers (
  writer bigint PRIMARY KEY,
  batch bigint NOT NULL,
  base bigint NOT NULL,
  through bigint NOT NULL,
  at_ms bigint NOT NULL,
  offsets bigint[] NOT NULL,
  outcomes integer[] NOT NULL
) WITH (fillfactor = 10);

-- The offset up to which a topic's messages are gone: by the limits of its rule, or deleted.
CREATE FUNCTION {schema}.history_floor(topic {schema}.history_topics) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found bigint;
  since_ms bigint := floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint - topic.seconds_max * 1000;
BEGIN
  SELECT m.previous INTO found FROM {schema}.history_messages AS m
  WHERE m.topic_id = topic.id AND m.record IS NOT NULL
    AND m.sequence > topic.last_sequence - topic.messages_max
    AND (topic.last_total - m.total <= topic.bytes_max OR m.log_offset = topic.last_offset)
    AND m.at_ms >= since_ms
  ORDER BY m.log_offset LIMIT 1;
  RETURN coalesce(found, nullif(topic.last_offset, 0), (SELECT forgotten FROM {schema}.history_log));
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_floor({schema}.history_topics) FROM PUBLIC;

-- Appends messages, which become one commit. No topic has a key twice in a batch, and a message with if_offset is its
-- topic's first in it. Gives for each message its offset and what came of it: 0 appended, 1 there already by its key
-- (with the offset it has), 2 refused for a newer message (with the offset of that). A batch that is there already
-- gives what it gave then. Where the log has another epoch than the writer's, or ends before an offset that the writer
-- knows, nothing is appended, and the arrays are NULL.
CREATE FUNCTION {schema}.history_append(
  writer bigint, batch bigint, known_epoch bigint, known_offset bigint, keys_seconds bigint, names text[], expires_ms bigint[], sizes bigint[], records bytea[],
  keys text[], if_offsets bigint[], messages_max bigint[], bytes_max bigint[], seconds_max bigint[]
) RETURNS TABLE (epoch bigint, base bigint, through bigint, at_ms bigint, offsets bigint[], outcomes integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  log {schema}.history_log;
  last {schema}.history_writers;
  now_ms bigint;
BEGIN
  SELECT * INTO STRICT log FROM {schema}.history_log FOR UPDATE;
  IF log.epoch <> history_append.known_epoch OR log.last_offset < history_append.known_offset THEN
    RETURN QUERY SELECT log.epoch, log.last_offset, log.last_offset, 0::bigint, NULL::bigint[], NULL::integer[];
    RETURN;
  END IF;
  SELECT * INTO last FROM {schema}.history_writers AS w WHERE w.writer = history_append.writer;
  IF last.batch = history_append.batch THEN
    RETURN QUERY SELECT log.epoch, last.base, last.through, last.at_ms, last.offsets, last.outcomes;
    RETURN;
  END IF;
  IF last.batch > history_append.batch THEN
    -- A call of a session that is gone: the writer has given this batch up, and gone on.
    RAISE EXCEPTION 'the batch % is older than the last one of this writer, %', history_append.batch, last.batch;
  END IF;
  now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
  INSERT INTO {schema}.history_topics (name)
  SELECT DISTINCT item.name FROM unnest(history_append.names) AS item (name)
  WHERE NOT EXISTS (SELECT FROM {schema}.history_topics AS t WHERE t.name = item.name);
  WITH item AS MATERIALIZED (
    SELECT i.n, t.id, t.last_offset, t.last_sequence, t.last_total, i.expires_ms, i.size, i.record, i.key,
      i.messages_max, i.bytes_max, i.seconds_max, k.log_offset AS earlier,
      -- Nothing is known of a topic that is new here, but that it may have been forgotten.
      CASE WHEN t.last_offset = 0 AND i.if_offset > 0 THEN log.forgotten ELSE t.last_offset END AS newest,
      CASE
        WHEN k.log_offset IS NOT NULL THEN 1
        WHEN i.if_offset < CASE WHEN t.last_offset = 0 AND i.if_offset > 0 THEN log.forgotten ELSE t.last_offset END THEN 2
        ELSE 0
      END AS outcome
    FROM unnest(
      history_append.names, history_append.expires_ms, history_append.sizes, history_append.records,
      history_append.keys, history_append.if_offsets, history_append.messages_max, history_append.bytes_max,
      history_append.seconds_max
    ) WITH ORDINALITY AS i (name, expires_ms, size, record, key, if_offset, messages_max, bytes_max, seconds_max, n)
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
      (log_offset, topic_id, previous, sequence, total, at_ms, expires_ms, record)
    SELECT log_offset, id,
      -- Nothing is known of the messages that a topic without one had before it was forgotten.
      coalesce(lag(log_offset) OVER (PARTITION BY id ORDER BY n), nullif(last_offset, 0), log.forgotten),
      sequence, total, now_ms, expires_ms, record
    FROM numbered WHERE outcome = 0
  ), topics AS (
    UPDATE {schema}.history_topics AS t SET
      last_offset = m.log_offset, last_sequence = m.sequence, last_total = m.total + m.size, last_ms = now_ms,
      messages_max = m.messages_max, bytes_max = m.bytes_max, seconds_max = m.seconds_max
    FROM numbered AS m WHERE m.outcome = 0 AND m.from_end = 1 AND t.id = m.id
  ), keyed AS (
    INSERT INTO {schema}.history_keys (topic_id, key, log_offset, expires_ms)
    SELECT id, key, log_offset, now_ms + history_append.keys_seconds * 1000
    FROM numbered WHERE outcome = 0 AND key IS NOT NULL
    ON CONFLICT (topic_id, key) DO UPDATE SET log_offset = excluded.log_offset, expires_ms = excluded.expires_ms
  )
  SELECT
    array_agg(CASE outcome WHEN 0 THEN log_offset WHEN 1 THEN earlier ELSE newest END ORDER BY n),
    array_agg(outcome ORDER BY n),
    coalesce(max(log_offset) FILTER (WHERE outcome = 0), log.last_offset)
  INTO last.offsets, last.outcomes, last.through
  FROM numbered;
  INSERT INTO {schema}.history_writers (writer, batch, base, through, at_ms, offsets, outcomes)
  VALUES (history_append.writer, history_append.batch, log.last_offset, last.through, now_ms, last.offsets, last.outcomes)
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

REVOKE ALL ON FUNCTION {schema}.history_append(
  bigint, bigint, bigint, bigint, bigint, text[], bigint[], bigint[], bytea[], text[], bigint[], bigint[], bigint[],
  bigint[]
) FROM PUBLIC;

-- Deletes what a topic has, and notes it in the log, so that all nodes forget it.
CREATE FUNCTION {schema}.history_delete(name text) RETURNS void
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
  UPDATE {schema}.history_log SET last_offset = log.last_offset + 1;
  PERFORM pg_notify('throng_history', '{schema}');
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_delete(text) FROM PUBLIC;

-- Deletes messages that the rules of some topics no longer retain, once they are a tenth of what they do, and that are
-- older than an age: those of the topics after an id. Gives the last id (NULL at the end), how many messages it
-- deleted, and the topics that had none for a day. Gives no row while another session does it. It waits for no lock
-- that an append has, and has none that an append needs.
CREATE FUNCTION {schema}.history_trim(after bigint, topics_max bigint, rows_max bigint, age_ms bigint)
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
    ELSIF oldest.at_ms < before_ms AND (
      topic.last_sequence - oldest.sequence >= topic.messages_max + topic.messages_max / 10
      OR topic.last_total - oldest.total > topic.bytes_max + topic.bytes_max / 10
      OR oldest.at_ms < now_ms - topic.seconds_max * 1000
    ) THEN
      DELETE FROM {schema}.history_messages AS d WHERE d.log_offset IN (
        SELECT m.log_offset FROM {schema}.history_messages AS m
        WHERE m.topic_id = topic.id AND m.log_offset <= {schema}.history_floor(topic) AND m.at_ms < before_ms
        ORDER BY m.log_offset LIMIT rows_max
      );
      GET DIAGNOSTICS part = ROW_COUNT;
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
  RETURN NEXT;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_trim(bigint, bigint, bigint, bigint) FROM PUBLIC;

-- Deletes idempotency keys that have expired, and what is known of processes that have appended nothing for a day. Gives
-- how many keys those were. It waits for no lock of an append, which in turn waits no longer than for this.
CREATE FUNCTION {schema}.history_trim_keys(rows_max bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
  deleted bigint;
BEGIN
  DELETE FROM {schema}.history_keys AS k WHERE (k.topic_id, k.key) IN (
    SELECT e.topic_id, e.key FROM {schema}.history_keys AS e
    WHERE e.expires_ms < now_ms ORDER BY e.expires_ms LIMIT rows_max FOR UPDATE SKIP LOCKED
  );
  GET DIAGNOSTICS deleted = ROW_COUNT;
  DELETE FROM {schema}.history_writers AS w WHERE w.writer IN (
    SELECT o.writer FROM {schema}.history_writers AS o
    WHERE o.at_ms < now_ms - 86400000 LIMIT rows_max FOR UPDATE SKIP LOCKED
  );
  RETURN deleted;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_trim_keys(bigint) FROM PUBLIC;

-- Forgets those of some topics that have had nothing for a day. It has no lock before it has that of the log, and
-- nobody appends to them meanwhile.
CREATE FUNCTION {schema}.history_forget(topics bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  log {schema}.history_log;
  day_ms bigint := 86400000;
BEGIN
  SELECT * INTO STRICT log FROM {schema}.history_log FOR UPDATE;
  WITH gone AS (
    DELETE FROM {schema}.history_topics AS t
    WHERE t.id = ANY (topics)
      AND t.last_ms < floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - day_ms
      AND NOT EXISTS (SELECT FROM {schema}.history_messages AS m WHERE m.topic_id = t.id)
      AND NOT EXISTS (SELECT FROM {schema}.history_keys AS k WHERE k.topic_id = t.id)
    RETURNING t.last_offset
  )
  UPDATE {schema}.history_log SET forgotten =
    greatest(log.forgotten, (SELECT coalesce(max(g.last_offset), 0) FROM gone AS g));
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_forget(bigint[]) FROM PUBLIC;

INSERT INTO {schema}.history_migrations (version) VALUES (1);
