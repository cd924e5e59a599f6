-- Written by `python -m tools.queries` from queries/purge_notables.sql: change that file.
-- purge_notables: forget notables past their time.
-- takes: limit
-- gives: now for each
-- why: by the store's clock. Nobody waits for it.
SELECT place AS which FROM semel_notable
WHERE forget_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND forget_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
ORDER BY forget_at LIMIT :limit FOR UPDATE SKIP LOCKED;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_notable
WHERE place IN (:picked) AND forget_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FOR UPDATE;

DELETE FROM semel_notable
WHERE place IN (:picked) AND forget_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
