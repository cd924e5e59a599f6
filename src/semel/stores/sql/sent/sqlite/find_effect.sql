-- Written by `python -m tools.queries` from queries/find_effect.sql: change that file.
-- find_effect: one effect, wherever it is.
-- takes: key
-- gives: the effect and now; no row when there is none
-- why: for operators.
SELECT key, identity, name, payload, order_key, tries, created_at, error, dead_at, delivered_at,
       provider_id, due_at, leased_until, application, :now
FROM semel_effect
WHERE key = :key
