-- Written by `python -m tools.queries` from queries/renew.sql: change that file.
-- renew: push the end of the lease away.
-- event: renew
-- takes: identity fence lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: a lease that is past is not revived; others may already have been told that it lapsed. Where
--      the sweeper looks, due_at stays, so that this is a HOT update: it finds the lease renewed.
UPDATE semel_record
SET leased_until = :now + :lease,
    due_at = CASE duty WHEN 1 /* lease */ THEN due_at ELSE :now + :lease END
WHERE identity = :identity AND fence = :fence AND state = 2 /* in_progress */
  AND leased_until > :now
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END, :now
