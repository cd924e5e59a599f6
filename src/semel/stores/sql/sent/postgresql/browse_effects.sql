-- Written by `python -m tools.queries` from queries/browse_effects.sql: change that file.
-- browse_effects: effects on one shelf, by key.
-- takes: $1 shelf $2 after $3 limit
-- gives: effects and now
-- why: for operators and ledgers.
SELECT key, identity, name, payload, order_key, tries, created_at, error, dead_at, delivered_at,
       provider_id, due_at, leased_until, application,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_effect
WHERE state = $1 AND key > $2
ORDER BY key LIMIT $3
