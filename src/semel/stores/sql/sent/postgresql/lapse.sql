-- Written by `python -m tools.queries` from queries/lapse.sql: change that file.
-- lapse: the holder's time is up; unknown, or where the claim declared it failed_retryable, a
--        deferred request pending again.
-- event: lapse
-- event: lapse, declared release
-- event: lapse, declared release, back to the queue
-- takes: $1 identity $2 seen $3 retention
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the fence stays: the late holder's completion is evidence. An open receipt stays with unknown.
--      A resumable one is not lapsed but resumed. sweep does the same for many.
UPDATE semel_record
SET state = CASE WHEN on_lapse <> 2 /* release */ THEN 5 /* unknown */
                 WHEN patience IS NULL THEN 4 /* failed_retryable */ ELSE 1 /* pending */ END,
    duty = CASE WHEN on_lapse <> 2 /* release */ THEN 4 /* ask */
                WHEN patience IS NULL THEN 6 /* forget */ ELSE 3 /* run */ END,
    due_at = CASE WHEN on_lapse = 2 /* release */ AND patience IS NULL
                  THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint + $3
                  WHEN on_lapse = 2 /* release */
                  AND abandon_at < (extract(epoch from clock_timestamp()) * 1000000)::bigint
                  THEN abandon_at
                  ELSE (extract(epoch from clock_timestamp()) * 1000000)::bigint END,
    leased_until = CASE on_lapse WHEN 2 /* release */ THEN abandon_at END,
    snapshot = CASE on_lapse WHEN 2 /* release */ THEN NULL ELSE snapshot END,
    tries = NULL, reason = 'the lease ran out'
WHERE identity = $1 AND fence = $2 AND state = 2 /* in_progress */
  AND leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
  AND on_lapse <> 3 /* resume */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
