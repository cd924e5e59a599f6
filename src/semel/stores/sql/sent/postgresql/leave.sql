-- Written by `python -m tools.queries` from queries/leave.sql: change that file.
-- leave: a worker ends.
-- takes: $1 id
-- gives: now; no row when it was not there
-- why: one that ends in order is not missed.
DELETE FROM semel_worker
WHERE id = $1
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
