-- Written by `python -m tools.queries` from queries/release.sql: change that file.
-- release: nothing happened, a retry may run; a deferred request may be put back in the queue.
-- event: release
-- event: release, back to the queue
-- takes: identity fence retention reason requeue
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: never from unknown: once others were told "may have happened", only evidence decides. Who was
--      put back is due no later than its deadline, where the abandoner looks.
UPDATE semel_record
SET state = CASE WHEN CAST(:requeue AS bigint) IS NULL OR patience IS NULL
                 THEN 4 /* failed_retryable */ ELSE 1 /* pending */ END,
    duty = CASE WHEN CAST(:requeue AS bigint) IS NULL OR patience IS NULL
                THEN 6 /* forget */ ELSE 3 /* run */ END,
    due_at = CASE WHEN CAST(:requeue AS bigint) IS NULL OR patience IS NULL
                  THEN :now + :retention
                  WHEN :now + CAST(:requeue AS bigint) < abandon_at
                  THEN :now + CAST(:requeue AS bigint) ELSE abandon_at END,
    leased_until = CASE WHEN CAST(:requeue AS bigint) IS NULL THEN NULL ELSE abandon_at END,
    snapshot = NULL, reason = :reason
WHERE identity = :identity AND fence = :fence AND state = 2 /* in_progress */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END, :now
