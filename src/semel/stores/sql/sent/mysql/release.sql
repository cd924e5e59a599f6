-- Written by `python -m tools.queries` from queries/release.sql: change that file.
-- release: nothing happened, a retry may run; a deferred request may be put back in the queue.
-- event: release
-- event: release, back to the queue
-- takes: identity fence retention reason requeue
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: never from unknown: once others were told "may have happened", only evidence decides. Who was
--      put back is due no later than its deadline, where the abandoner looks.
UPDATE semel_record
SET state = CASE WHEN :requeue IS NULL OR patience IS NULL
                 THEN 4 /* failed_retryable */ ELSE 1 /* pending */ END,
    duty = CASE WHEN :requeue IS NULL OR patience IS NULL
                THEN 6 /* forget */ ELSE 3 /* run */ END,
    due_at = CASE WHEN :requeue IS NULL OR patience IS NULL
                  THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :retention
                  WHEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
                      + :requeue < abandon_at
                  THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :requeue
                  ELSE abandon_at END,
    leased_until = CASE WHEN :requeue IS NULL THEN NULL ELSE abandon_at END,
    snapshot = NULL, reason = :reason
WHERE identity = :identity AND fence = :fence AND state = 2 /* in_progress */;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
