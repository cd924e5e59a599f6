-- Written by `python -m tools.queries` from queries/leave.sql: change that file.
-- leave: a worker ends.
-- takes: id
-- gives: now; no row when it was not there
-- why: one that ends in order is not missed.
DELETE FROM semel_worker
WHERE id = :id
RETURNING :now
