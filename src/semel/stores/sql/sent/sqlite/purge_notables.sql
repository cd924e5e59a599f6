-- Written by `python -m tools.queries` from queries/purge_notables.sql: change that file.
-- purge_notables: forget notables past their time.
-- takes: limit
-- gives: now for each
-- why: by the store's clock. Nobody waits for it.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_notable
    WHERE forget_at <= (SELECT :now)
    ORDER BY forget_at LIMIT :limit
)
DELETE FROM semel_notable
WHERE place IN (SELECT which FROM due) AND forget_at <= :now
RETURNING :now
