-- Topics with a message after the offset $4, in the order of their names: from the name $1 on, without it where $2 is
-- true, and before the name $3; $5 at the most.
SELECT name, last_offset FROM {schema}.history_topics
WHERE name >= $1 AND (name > $1 OR NOT $2) AND name < $3 AND last_offset > $4::bigint
ORDER BY name LIMIT $5::bigint
