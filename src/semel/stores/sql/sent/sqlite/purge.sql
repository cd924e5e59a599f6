-- Written by `python -m tools.queries` from queries/purge.sql: change that file.
-- purge: forget, for many.
-- event: forget
-- takes: limit
-- gives: now for each record that is gone
-- why: as expire. What was completed is expired first, and forgotten in the same round if it is due.
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = 6 /* forget */ AND due_at <= (SELECT :now)
    ORDER BY due_at LIMIT :limit
)
DELETE FROM semel_record
WHERE identity IN (SELECT which FROM due)
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */)
  AND CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END <= :now
RETURNING :now
