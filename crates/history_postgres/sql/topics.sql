-- Topics in the order of their names: from the name $1 on, or after it where $2 is true, and before the name $3. Scans $5 of them at
-- most. Returns those with a message after the offset $4, and the last one scanned in any case, with how many were scanned.
WITH part AS MATERIALIZED (
  SELECT name, last_offset FROM {schema}.history_topics
  WHERE name >= $1 AND (name > $1 OR NOT $2) AND name < $3 ORDER BY name LIMIT $5::bigint
)
SELECT name, last_offset, (SELECT count(*) FROM part) AS scanned FROM part
WHERE last_offset > $4::bigint OR name = (SELECT max(name) FROM part) ORDER BY name
