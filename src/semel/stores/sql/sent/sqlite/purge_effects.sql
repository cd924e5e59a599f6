-- Written by `python -m tools.queries` from queries/purge_effects.sql: change that file.
-- purge_effects: forget delivered effects past their time.
-- takes: limit
-- gives: now for each
-- why: a waiting or dead effect is never forgotten by time.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_effect
    WHERE state = 'delivered' AND due_at <= (SELECT :now)
    ORDER BY due_at LIMIT :limit
)
DELETE FROM semel_effect
WHERE place IN (SELECT which FROM due) AND state = 'delivered'
RETURNING :now
