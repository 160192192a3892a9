CREATE TABLE {schema}.subscriptions_migrations (
  version integer PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row. An edit locks it until its commit, so that changes are in the order of commits.
CREATE TABLE {schema}.subscriptions_log (
  is_one boolean PRIMARY KEY DEFAULT true CHECK (is_one),
  epoch bigint NOT NULL,
  last_change bigint NOT NULL DEFAULT 0,
  -- Rows of users without topics are deleted up to this change: a node that knows less reads all rows.
  forgotten bigint NOT NULL DEFAULT 0,
  -- The subscriptions of all users.
  total bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

INSERT INTO {schema}.subscriptions_log (epoch) VALUES (1 + floor(random() * 4294967294)::bigint);

CREATE TABLE {schema}.subscriptions (
  user_name text COLLATE "C" PRIMARY KEY,
  -- In the order of their bytes. Empty: the user has none any more, and nodes have yet to learn it.
  topics text[] NOT NULL,
  -- The number of the user's last change.
  change bigint NOT NULL UNIQUE,
  changed_at timestamptz NOT NULL
);

CREATE INDEX subscriptions_empty ON {schema}.subscriptions (changed_at) WHERE topics = '{}';

-- Edits users' topics in order: removes topics (all, where removes_all), then adds others. Names of topics are separated
-- by line feeds, which no name has. A user who would have more topics than before and than topics_max stays as before;
-- with all_or_nothing, all do (TH001, with the number of the edit and of topics). All also do if all users together would
-- have more topics than before and than total_max (TH002, with the number of topics more; 0: no limit). Gives for each
-- edit how many topics were added and removed, how many the user has (or would have), and whether it was rejected.
CREATE FUNCTION {schema}.subscriptions_edit(
  users text[], removes_all boolean[], removes text[], adds text[], all_or_nothing boolean, topics_max bigint,
  total_max bigint
) RETURNS TABLE (added bigint[], removed bigint[], counts bigint[], rejected boolean[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  log {schema}.subscriptions_log;
  edit record;
  former text[];
  latter text[];
  common bigint;
  new_change bigint;
  new_total bigint;
BEGIN
  SELECT * INTO STRICT log FROM {schema}.subscriptions_log FOR UPDATE;
  new_change := log.last_change;
  new_total := log.total;
  added := '{}';
  removed := '{}';
  counts := '{}';
  rejected := '{}';
  FOR edit IN
    SELECT e.n, e.user_name, e.removes_all,
      string_to_array(e.removes, E'\n') AS removes, string_to_array(e.adds, E'\n') AS adds
    FROM unnest(
      subscriptions_edit.users, subscriptions_edit.removes_all, subscriptions_edit.removes, subscriptions_edit.adds
    ) WITH ORDINALITY AS e (user_name, removes_all, removes, adds, n)
    ORDER BY e.n
  LOOP
    SELECT s.topics INTO former FROM {schema}.subscriptions AS s WHERE s.user_name = edit.user_name;
    former := coalesce(former, '{}');
    SELECT coalesce(array_agg(item.topic ORDER BY item.topic COLLATE "C"), '{}') INTO latter FROM (
      (SELECT unnest(former) WHERE NOT edit.removes_all EXCEPT SELECT unnest(edit.removes))
      UNION SELECT unnest(edit.adds)
    ) AS item (topic);
    counts := counts || cardinality(latter)::bigint;
    IF cardinality(latter) > greatest(subscriptions_edit.topics_max, cardinality(former)) THEN
      IF subscriptions_edit.all_or_nothing THEN
        RAISE EXCEPTION 'a user would have too many subscriptions'
          USING ERRCODE = 'TH001', DETAIL = format('%s %s', edit.n - 1, cardinality(latter));
      END IF;
      added := added || 0::bigint;
      removed := removed || 0::bigint;
      rejected := rejected || true;
      CONTINUE;
    END IF;
    SELECT count(*) INTO common FROM (SELECT unnest(former) INTERSECT SELECT unnest(latter)) AS both_have;
    added := added || cardinality(latter) - common;
    removed := removed || cardinality(former) - common;
    rejected := rejected || false;
    IF former <> latter THEN
      new_change := new_change + 1;
      new_total := new_total + cardinality(latter) - cardinality(former);
      INSERT INTO {schema}.subscriptions (user_name, topics, change, changed_at)
      VALUES (edit.user_name, latter, new_change, clock_timestamp())
      ON CONFLICT (user_name) DO UPDATE SET
        topics = excluded.topics, change = excluded.change, changed_at = excluded.changed_at;
    END IF;
  END LOOP;
  IF subscriptions_edit.total_max > 0 AND new_total > greatest(subscriptions_edit.total_max, log.total) THEN
    RAISE EXCEPTION 'all users together would have too many subscriptions'
      USING ERRCODE = 'TH002', DETAIL = (new_total - log.total)::text;
  END IF;
  IF new_change > log.last_change THEN
    UPDATE {schema}.subscriptions_log AS l SET last_change = new_change, total = new_total;
    PERFORM pg_notify('throng_subscriptions', '{schema}');
  END IF;
  RETURN NEXT;
END
$$;

REVOKE ALL ON FUNCTION {schema}.subscriptions_edit(text[], boolean[], text[], text[], boolean, bigint, bigint) FROM PUBLIC;

-- Deletes the rows of users who have had no topic for a day. Gives how many those were.
CREATE FUNCTION {schema}.subscriptions_trim(rows_max bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before timestamptz := clock_timestamp() - interval '1 day';
  last_deleted bigint;
  deleted bigint;
BEGIN
  IF NOT EXISTS (SELECT FROM {schema}.subscriptions AS s WHERE s.topics = '{}' AND s.changed_at < before) THEN
    RETURN 0;
  END IF;
  PERFORM FROM {schema}.subscriptions_log FOR UPDATE;
  WITH gone AS (
    DELETE FROM {schema}.subscriptions AS d WHERE d.user_name IN (
      SELECT s.user_name FROM {schema}.subscriptions AS s
      WHERE s.topics = '{}' AND s.changed_at < before ORDER BY s.changed_at LIMIT rows_max
    ) RETURNING d.change
  )
  SELECT max(g.change), count(*) INTO last_deleted, deleted FROM gone AS g;
  UPDATE {schema}.subscriptions_log SET forgotten = greatest(forgotten, last_deleted) WHERE deleted > 0;
  RETURN deleted;
END
$$;

REVOKE ALL ON FUNCTION {schema}.subscriptions_trim(bigint) FROM PUBLIC;

INSERT INTO {schema}.subscriptions_migrations (version) VALUES (1);
