-- Written by `python -m tools.queries` from queries/list_workers.sql: change that file.
-- list_workers: who looks after the records.
-- takes: $1 limit
-- gives: id, application, role, does, host, pid, version, leads, seen_at, until, now
-- why: for operators. They are few: no index.
SELECT id, application, role, does, host, pid, version, leads, seen_at, until,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_worker
ORDER BY seen_at DESC, id LIMIT $1
