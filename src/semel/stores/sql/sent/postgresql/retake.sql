-- Written by `python -m tools.queries` from queries/retake.sql: change that file.
-- retake: start a released record again under a new fence.
-- event: retake
-- takes: $1 identity $2 seen $3 fence $4 lease $5 on_lapse
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: forget_at is cleared, for a record in progress never becomes free by time. Request and journal
--      stay: the retry is the same request, and goes on where the last run ended. The patience of a
--      deferred one begins anew.
UPDATE semel_record
SET state = 'in_progress', fence = $3,
    leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4,
    on_lapse = CAST($5 AS text),
    duty = CASE CAST($5 AS text) WHEN 'resume' THEN 'resume' ELSE 'lease' END,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4,
    abandon_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + patience,
    expires_at = NULL, forget_at = NULL, snapshot = NULL, reason = NULL
WHERE identity = $1 AND fence = $2 AND state = 'failed_retryable'
RETURNING state, leased_until, expires_at, (extract(epoch from clock_timestamp()) * 1000000)::bigint
