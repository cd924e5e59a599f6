-- Written by `python -m tools.queries` from queries/take.sql: change that file.
-- take: a worker begins a deferred request, under a new fence.
-- event: take
-- takes: identity seen fence lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: of two workers that saw the same record one burns the fence the other saw.
UPDATE semel_record
SET state = 2 /* in_progress */, fence = :fence, leased_until = :now + :lease, reason = NULL,
    duty = CASE on_lapse WHEN 3 /* resume */ THEN 2 /* resume */ ELSE 1 /* lease */ END,
    due_at = :now + :lease
WHERE identity = :identity AND fence = :seen AND state = 1 /* pending */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END, :now
