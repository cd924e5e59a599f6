-- Written by `python -m tools.queries` from queries/resume.sql: change that file.
-- resume: go on with a resumable operation whose holder's time is up, under a new fence.
-- event: lapse, declared resume
-- takes: identity seen fence lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the old holder may only be slow; its fence is burnt before anybody goes on.
UPDATE semel_record
SET fence = :fence, leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + :lease, duty = 2 /* resume */,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease,
    snapshot = NULL, reason = NULL
WHERE identity = :identity AND fence = :seen AND state = 2 /* in_progress */
  AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  AND on_lapse = 3 /* resume */;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
