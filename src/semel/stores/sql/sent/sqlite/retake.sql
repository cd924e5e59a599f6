-- Written by `python -m tools.queries` from queries/retake.sql: change that file.
-- retake: start a released record again under a new fence.
-- event: retake
-- takes: identity seen fence lease on_lapse
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: due_at is no longer when it is forgotten: a record in progress never becomes free by time.
--      Request and journal stay: the retry is the same request, and goes on where the last run
--      ended. The patience of a deferred one begins anew.
UPDATE semel_record
SET state = 2 /* in_progress */, fence = :fence, leased_until = :now + :lease,
    on_lapse = CAST(:on_lapse AS smallint),
    duty = CASE CAST(:on_lapse AS smallint)
           WHEN 3 /* resume */ THEN 2 /* resume */ ELSE 1 /* lease */ END,
    due_at = :now + :lease, abandon_at = :now + patience,
    snapshot = NULL, reason = NULL
WHERE identity = :identity AND fence = :seen AND state = 4 /* failed_retryable */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END, :now
