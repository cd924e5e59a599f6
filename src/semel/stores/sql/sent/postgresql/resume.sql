-- Written by `python -m tools.queries` from queries/resume.sql: change that file.
-- resume: go on with a resumable operation whose holder's time is up, under a new fence.
-- event: lapse, declared resume
-- takes: $1 identity $2 seen $3 fence $4 lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the old holder may only be slow; its fence is burnt before anybody goes on.
UPDATE semel_record
SET fence = $3, leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4,
    duty = 2 /* resume */, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4,
    snapshot = NULL, reason = NULL
WHERE identity = $1 AND fence = $2 AND state = 2 /* in_progress */
  AND leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
  AND on_lapse = 3 /* resume */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
