-- Written by `python -m tools.queries` from queries/erase_notables.sql: change that file.
-- erase_notables: delete what is kept of a tenant.
-- takes: tenant application limit
-- gives: now for each
-- why: there is no index by tenant: an erasure is rare, and the table small. What is locked is being
--      deleted already.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_notable
    WHERE tenant = :tenant AND application = :application
    ORDER BY place LIMIT :limit
)
DELETE FROM semel_notable
WHERE place IN (SELECT which FROM due) AND tenant = :tenant
RETURNING :now
