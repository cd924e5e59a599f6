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
                 THEN 'failed_retryable' ELSE 'pending' END,
    duty = CASE WHEN CAST($5 AS bigint) IS NULL OR patience IS NULL
                THEN 'forget' ELSE 'run' END,
    due_at = CASE WHEN CAST($5 AS bigint) IS NULL OR patience IS NULL
                  THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint + $3
                  WHEN (extract(epoch from clock_timestamp()) * 1000000)::bigint
                      + CAST($5 AS bigint) < abandon_at
                  THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint
                      + CAST($5 AS bigint) ELSE abandon_at END,
    forget_at = CASE WHEN CAST($5 AS bigint) IS NULL OR patience IS NULL
                     THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint + $3 END,
    leased_until = CASE WHEN CAST($5 AS bigint) IS NULL THEN NULL ELSE abandon_at END,
    snapshot = NULL, reason = $4
WHERE identity = $1 AND fence = $2 AND state = 'in_progress'
RETURNING state, leased_until, expires_at, (extract(epoch from clock_timestamp()) * 1000000)::bigint
