-- purge: forget, for many.
-- event: forget
-- takes: limit
-- gives: now for each record that is gone
-- why: as expire. What was completed is expired first, and forgotten in the same round if it is due.
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = {duty.forget} AND due_at <= (SELECT {now})
    ORDER BY due_at LIMIT :limit {locked}
)
DELETE FROM semel_record
WHERE identity {chosen}
  AND state IN ({completed}, {failed_retryable}, {expired}) AND {forget_at} <= {now}
RETURNING {now}
