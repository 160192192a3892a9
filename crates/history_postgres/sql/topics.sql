-- Scans at most $5 names of topics, in their order: from the name $1 on, or after it where $2 is true, and before the name $3.
-- Returns the topics with a message after the offset $4, and always the last one that was scanned. "scanned" counts all of them.
WITH part AS MATERIALIZED (
  SELECT name, last_offset FROM {schema}.history_topics
  WHERE name >= $1 AND (name > $1 OR NOT $2) AND name < $3 ORDER BY name LIMIT $5::bigint
)
SELECT name, last_offset, (SELECT count(*) FROM part) AS scanned FROM part
WHERE last_offset > $4::bigint OR name = (SELECT max(name) FROM part) ORDER BY name
