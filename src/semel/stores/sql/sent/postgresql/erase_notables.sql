-- Written by `python -m tools.queries` from queries/erase_notables.sql: change that file.
-- erase_notables: delete what is kept of a tenant.
-- takes: $1 tenant $2 application $3 limit
-- gives: now for each
-- why: there is no index by tenant: an erasure is rare, and the table small. What is locked is being
--      deleted already.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_notable
    WHERE tenant = $1 AND application = $2
    ORDER BY place LIMIT $3 FOR UPDATE SKIP LOCKED
)
DELETE FROM semel_notable
WHERE place = ANY (ARRAY(SELECT which FROM due)) AND tenant = $1
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
