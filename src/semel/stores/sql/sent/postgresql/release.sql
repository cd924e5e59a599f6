-- Written by `python -m tools.queries` from queries/release.sql: change that file.
-- release: nothing happened, a retry may run; a deferred request may be put back in the queue.
-- event: release
-- event: release, back to the queue
-- takes: $1 identity $2 fence $3 retention $4 reason $5 requeue
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: never from unknown: once others were told "may have happened", only evidence decides. Who was
--      put back is due no later than its deadline, where the abandoner looks.
UPDATE semel_record
SET state = CASE WHEN CAST($5 AS bigint) IS NULL OR patience IS NULL
                 THEN 4 /* failed_retryable */ ELSE 1 /* pending */ END,
    duty = CASE WHEN CAST($5 AS bigint) IS NULL OR patience IS NULL
                THEN 6 /* forget */ ELSE 3 /* run */ END,
    due_at = CASE WHEN CAST($5 AS bigint) IS NULL OR patience IS NULL
                  THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint + $3
                  WHEN (extract(epoch from clock_timestamp()) * 1000000)::bigint
                      + CAST($5 AS bigint) < abandon_at
                  THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint
                      + CAST($5 AS bigint) ELSE abandon_at END,
    leased_until = CASE WHEN CAST($5 AS bigint) IS NULL THEN NULL ELSE abandon_at END,
    snapshot = NULL, reason = $4
WHERE identity = $1 AND fence = $2 AND state = 2 /* in_progress */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
