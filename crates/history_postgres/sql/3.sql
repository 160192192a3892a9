-- Users' cursors: the offsets up to which users have acknowledged topics.

-- One row. Whoever moves cursors locks it until the commit, so that numbers of changes are in the order of commits.
CREATE TABLE {schema}.history_cursors_log (
  is_one boolean PRIMARY KEY DEFAULT true CHECK (is_one),
  last_change bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

INSERT INTO {schema}.history_cursors_log DEFAULT VALUES;

CREATE TABLE {schema}.history_cursors (
  user_name text COLLATE "C" NOT NULL,
  topic text COLLATE "C" NOT NULL,
  -- The user has acknowledged all messages up to this offset. NULL: none.
  acknowledged bigint,
  -- The last message that was given up. 0: none.
  given_up bigint NOT NULL,
  -- The number of the cursor's last change.
  change bigint NOT NULL UNIQUE,
  PRIMARY KEY (user_name, topic)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000);

-- Moves cursors, each of which is in the call once. A cursor that is not there begins at an offset of `begins` (NULL: at
-- none). Others move up to those of `acknowledged` (NULL: they stay) and `given_up` (0: they stay), never back, and not beyond
-- the last message of the log. Moves of a node where the user began behind the cursor do not count: the user has not got what
-- lies between. Gives where the cursors are now, or no row where the log has another epoch.
CREATE FUNCTION {schema}.history_move_cursors(
  known_epoch bigint, users text[], topics text[], begins bigint[], acknowledged bigint[], given_up bigint[]
) RETURNS TABLE (new_acknowledged bigint[], new_given_up bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  log {schema}.history_log;
  before bigint;
  moved bigint;
BEGIN
  SELECT l.last_change INTO STRICT before FROM {schema}.history_cursors_log AS l FOR UPDATE;
  SELECT l.* INTO STRICT log FROM {schema}.history_log AS l;
  IF log.epoch <> history_move_cursors.known_epoch THEN
    RETURN;
  END IF;
  WITH item AS MATERIALIZED (
    SELECT i.n, i.user_name, i.topic, c.acknowledged AS old_acknowledged, c.given_up AS old_given_up,
      CASE
        WHEN c.user_name IS NULL THEN greatest(i.begin_at, i.acknowledged)
        WHEN i.begin_at > greatest(c.acknowledged, c.given_up) THEN c.acknowledged
        ELSE greatest(c.acknowledged, i.acknowledged)
      END AS acknowledged,
      CASE
        WHEN i.begin_at > greatest(c.acknowledged, c.given_up) THEN c.given_up
        ELSE greatest(c.given_up, least(i.given_up, log.last_offset))
      END AS given_up
    FROM (
      SELECT u.n, u.user_name, u.topic, u.begin_at, u.given_up,
        CASE WHEN u.acknowledged IS NOT NULL THEN least(u.acknowledged, log.last_offset) END AS acknowledged
      FROM unnest(
        history_move_cursors.users, history_move_cursors.topics, history_move_cursors.begins,
        history_move_cursors.acknowledged, history_move_cursors.given_up
      ) WITH ORDINALITY AS u (user_name, topic, begin_at, acknowledged, given_up, n)
    ) AS i
    LEFT JOIN {schema}.history_cursors AS c ON c.user_name = i.user_name AND c.topic = i.topic
  ), written AS (
    INSERT INTO {schema}.history_cursors AS c (user_name, topic, acknowledged, given_up, change)
    SELECT i.user_name, i.topic, i.acknowledged, i.given_up, before + row_number() OVER (ORDER BY i.n)
    FROM item AS i
    WHERE i.acknowledged IS DISTINCT FROM i.old_acknowledged OR i.given_up IS DISTINCT FROM i.old_given_up
    ON CONFLICT (user_name, topic) DO UPDATE SET
      acknowledged = excluded.acknowledged, given_up = excluded.given_up, change = excluded.change
    RETURNING c.change
  )
  SELECT
    (SELECT array_agg(i.acknowledged ORDER BY i.n) FROM item AS i),
    (SELECT array_agg(i.given_up ORDER BY i.n) FROM item AS i),
    (SELECT count(*) FROM written)
  INTO new_acknowledged, new_given_up, moved;
  IF moved > 0 THEN
    UPDATE {schema}.history_cursors_log SET last_change = before + moved;
    PERFORM pg_notify('throng_cursors', '{schema}');
  END IF;
  RETURN NEXT;
END
$$;

REVOKE ALL ON FUNCTION {schema}.history_move_cursors(bigint, text[], text[], bigint[], bigint[], bigint[]) FROM PUBLIC;

-- Programs from this version on can use the tables, too. NULL: none before.
ALTER TABLE {schema}.history_migrations ADD COLUMN usable_from integer;

INSERT INTO {schema}.history_migrations (version, usable_from) VALUES (3, 2);
