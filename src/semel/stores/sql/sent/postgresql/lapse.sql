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
SET state = CASE WHEN on_lapse <> 'release' THEN 'unknown'
                 WHEN patience IS NULL THEN 'failed_retryable' ELSE 'pending' END,
    duty = CASE WHEN on_lapse <> 'release' THEN 'ask'
                WHEN patience IS NULL THEN 'forget' ELSE 'run' END,
    due_at = CASE WHEN on_lapse = 'release' AND patience IS NULL
                  THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint + $3
                  WHEN on_lapse = 'release'
                  AND abandon_at < (extract(epoch from clock_timestamp()) * 1000000)::bigint
                  THEN abandon_at
                  ELSE (extract(epoch from clock_timestamp()) * 1000000)::bigint END,
    forget_at = CASE WHEN on_lapse = 'release' AND patience IS NULL
                     THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint + $3 END,
    leased_until = CASE on_lapse WHEN 'release' THEN abandon_at END,
    snapshot = CASE on_lapse WHEN 'release' THEN NULL ELSE snapshot END,
    tries = 0, reason = 'the lease ran out'
WHERE identity = $1 AND fence = $2 AND state = 'in_progress'
  AND leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
  AND on_lapse <> 'resume'
RETURNING state, leased_until, expires_at, (extract(epoch from clock_timestamp()) * 1000000)::bigint
