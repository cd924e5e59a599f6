-- Written by `python -m tools.queries` from queries/erase_notables.sql: change that file.
-- erase_notables: delete what is kept of a tenant.
-- takes: tenant application limit
-- gives: now for each
-- why: there is no index by tenant: an erasure is rare, and the table small. What is locked is being
--      deleted already.
SELECT place AS which FROM semel_notable
WHERE tenant = :tenant AND application = :application
  AND tenant = :tenant
ORDER BY place LIMIT :limit FOR UPDATE SKIP LOCKED;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_notable
WHERE place IN (:picked) AND tenant = :tenant
FOR UPDATE;

DELETE FROM semel_notable
WHERE place IN (:picked) AND tenant = :tenant
