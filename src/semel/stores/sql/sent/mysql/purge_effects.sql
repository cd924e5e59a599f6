-- Written by `python -m tools.queries` from queries/purge_effects.sql: change that file.
-- purge_effects: forget delivered effects past their time.
-- takes: limit
-- gives: now for each
-- why: a waiting or dead effect is never forgotten by time.
SELECT place AS which FROM semel_effect
WHERE state = 'delivered'
  AND due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND state = 'delivered'
ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_effect
WHERE place IN (:picked) AND state = 'delivered'
FOR UPDATE;

DELETE FROM semel_effect
WHERE place IN (:picked) AND state = 'delivered'
