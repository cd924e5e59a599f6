-- Written by `python -m tools.queries` from queries/retake.sql: change that file.
-- retake: start a released record again under a new fence.
-- event: retake
-- takes: $1 identity $2 seen $3 fence $4 lease $5 on_lapse
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: due_at is no longer when it is forgotten: a record in progress never becomes free by time.
--      Request and journal stay: the retry is the same request, and goes on where the last run
--      ended. The patience of a deferred one begins anew.
UPDATE semel_record
SET state = 2 /* in_progress */, fence = $3,
    leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4,
    on_lapse = CAST($5 AS smallint),
    duty = CASE CAST($5 AS smallint)
           WHEN 3 /* resume */ THEN 2 /* resume */ ELSE 1 /* lease */ END,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4,
    abandon_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + patience,
    snapshot = NULL, reason = NULL
WHERE identity = $1 AND fence = $2 AND state = 4 /* failed_retryable */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
