-- Written by `python -m tools.queries` from queries/leave.sql: change that file.
-- leave: a worker ends.
-- takes: id
-- gives: now; no row when it was not there
-- why: one that ends in order is not missed.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_worker
WHERE id = :id
FOR UPDATE;

DELETE FROM semel_worker
WHERE id = :id
