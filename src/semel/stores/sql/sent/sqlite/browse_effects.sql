-- Written by `python -m tools.queries` from queries/browse_effects.sql: change that file.
-- browse_effects: effects on one shelf, by key.
-- takes: shelf after limit
-- gives: effects and now
-- why: for operators and ledgers.
SELECT key, identity, name, payload, order_key, tries, created_at, error, dead_at, delivered_at,
       provider_id, due_at, leased_until, application, :now
FROM semel_effect
WHERE state = :shelf AND key > :after
ORDER BY key LIMIT :limit
