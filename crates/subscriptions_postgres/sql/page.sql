-- The users after the user $1 who have topics, $2 of them at the most, by name.
SELECT user_name, topics FROM {schema}.subscriptions
WHERE user_name > $1::text AND topics <> '{}' ORDER BY user_name LIMIT $2::bigint
