-- Written by `python -m tools.queries` from queries/list_workers.sql: change that file.
-- list_workers: who looks after the records.
-- takes: limit
-- gives: id, application, role, does, host, pid, version, leads, seen_at, until, now
-- why: for operators. They are few: no index.
SELECT id, application, role, does, host, pid, version, leads, seen_at, until, :now
FROM semel_worker
ORDER BY seen_at DESC, id LIMIT :limit
