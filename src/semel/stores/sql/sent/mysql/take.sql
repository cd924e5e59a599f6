-- Written by `python -m tools.queries` from queries/take.sql: change that file.
-- take: a worker begins a deferred request, under a new fence.
-- event: take
-- takes: identity seen fence lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: of two workers that saw the same record one burns the fence the other saw.
UPDATE semel_record
SET state = 2 /* in_progress */, fence = :fence,
    leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease,
    reason = NULL,
    duty = CASE on_lapse WHEN 3 /* resume */ THEN 2 /* resume */ ELSE 1 /* lease */ END,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease
WHERE identity = :identity AND fence = :seen AND state = 1 /* pending */;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
