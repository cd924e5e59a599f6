-- Written by `python -m tools.queries` from queries/retake.sql: change that file.
-- retake: start a released record again under a new fence.
-- event: retake
-- takes: identity seen fence lease on_lapse
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: due_at is no longer when it is forgotten: a record in progress never becomes free by time.
--      Request and journal stay: the retry is the same request, and goes on where the last run
--      ended. The patience of a deferred one begins anew.
UPDATE semel_record
SET state = 2 /* in_progress */, fence = :fence,
    leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease,
    on_lapse = :on_lapse,
    duty = CASE :on_lapse
           WHEN 3 /* resume */ THEN 2 /* resume */ ELSE 1 /* lease */ END,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease,
    abandon_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + patience,
    snapshot = NULL, reason = NULL
WHERE identity = :identity AND fence = :seen AND state = 4 /* failed_retryable */;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
