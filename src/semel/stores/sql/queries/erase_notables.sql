-- erase_notables: delete what is kept of a tenant.
-- takes: tenant application limit
-- gives: now for each
-- why: there is no index by tenant: an erasure is rare, and the table small. What is locked is being
--      deleted already.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_notable
    WHERE tenant = :tenant AND application = :application
    ORDER BY place LIMIT :limit {locked}
)
DELETE FROM semel_notable
WHERE place {chosen} AND tenant = :tenant
RETURNING {now}
