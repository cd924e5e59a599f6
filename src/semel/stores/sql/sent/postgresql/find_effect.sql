-- Written by `python -m tools.queries` from queries/find_effect.sql: change that file.
-- find_effect: one effect, wherever it is.
-- takes: $1 key
-- gives: the effect and now; no row when there is none
-- why: for operators.
SELECT key, identity, name, payload, order_key, tries, created_at, error, dead_at, delivered_at,
       provider_id, due_at, leased_until, application,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_effect
WHERE key = $1
