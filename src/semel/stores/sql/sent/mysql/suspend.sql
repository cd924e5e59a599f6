-- Written by `python -m tools.queries` from queries/suspend.sql: change that file.
-- suspend: it may have happened; only evidence decides from here.
-- event: suspend
-- takes: identity fence reason probe_after
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the fence stays, so that the holder's late result can still complete the record; there is no
--      expiry, so that it never becomes free by time. Nobody to be asked: due never, a dead letter.
UPDATE semel_record
SET state = 5 /* unknown */, leased_until = NULL, reason = :reason, tries = NULL,
    duty = 4 /* ask */,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :probe_after
WHERE identity = :identity AND fence = :fence AND state = 2 /* in_progress */;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
