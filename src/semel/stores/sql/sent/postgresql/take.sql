-- Written by `python -m tools.queries` from queries/take.sql: change that file.
-- take: a worker begins a deferred request, under a new fence.
-- event: take
-- takes: $1 identity $2 seen $3 fence $4 lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: of two workers that saw the same record one burns the fence the other saw.
UPDATE semel_record
SET state = 2 /* in_progress */, fence = $3,
    leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4, reason = NULL,
    duty = CASE on_lapse WHEN 3 /* resume */ THEN 2 /* resume */ ELSE 1 /* lease */ END,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4
WHERE identity = $1 AND fence = $2 AND state = 1 /* pending */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
