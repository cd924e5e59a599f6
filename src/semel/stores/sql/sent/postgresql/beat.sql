-- Written by `python -m tools.queries` from queries/beat.sql: change that file.
-- beat: a worker is there.
-- takes: $1 id $2 application $3 role $4 does $5 host $6 pid $7 version $8 leads $9 lease
-- gives: now
-- why: what it does may change, so all of it is written.
INSERT INTO semel_worker
    (id, application, role, does, host, pid, version, leads, seen_at, until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, (extract(epoch from clock_timestamp()) * 1000000)::bigint,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint + $9)
ON CONFLICT (id) DO UPDATE
SET does = excluded.does, leads = excluded.leads, seen_at = excluded.seen_at,
    until = excluded.until
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
