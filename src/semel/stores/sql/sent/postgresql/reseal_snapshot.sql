-- Written by `python -m tools.queries` from queries/reseal_snapshot.sql: change that file.
-- reseal_snapshot: exchange a snapshot for other bytes that mean the same.
-- takes: $1 identity $2 seen $3 old $4 new
-- gives: state, leased_until, expires_at, now; no row when it has changed
-- why: whoever wrote it meanwhile, under whatever fence, keeps what was written.
UPDATE semel_record
SET snapshot = $4
WHERE identity = $1 AND fence = $2 AND snapshot = $3
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
