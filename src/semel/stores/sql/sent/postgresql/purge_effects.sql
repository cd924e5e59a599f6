-- Written by `python -m tools.queries` from queries/purge_effects.sql: change that file.
-- purge_effects: forget delivered effects past their time.
-- takes: $1 limit
-- gives: now for each
-- why: a waiting or dead effect is never forgotten by time.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_effect
    WHERE state = 'delivered'
      AND due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM semel_effect
WHERE place = ANY (ARRAY(SELECT which FROM due)) AND state = 'delivered'
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
