-- Written by `python -m tools.queries` from queries/purge_workers.sql: change that file.
-- purge_workers: forget workers that have long been silent.
-- takes: memory limit
-- gives: now for each
-- why: one that is killed does not say goodbye. They are few: no index.
--      One that is heard of meanwhile stays.
SELECT id AS which FROM semel_worker
WHERE until <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) - :memory
  AND until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - :memory
ORDER BY until LIMIT :limit FOR UPDATE SKIP LOCKED;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_worker
WHERE id IN (:picked)
  AND until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - :memory
FOR UPDATE;

DELETE FROM semel_worker
WHERE id IN (:picked)
  AND until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - :memory
