-- Written by `python -m tools.queries` from queries/renew.sql: change that file.
-- renew: push the end of the lease away.
-- event: renew
-- takes: $1 identity $2 fence $3 lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: a lease that is past is not revived; others may already have been told that it lapsed. Where
--      the sweeper looks, due_at stays, so that this is a HOT update: it finds the lease renewed.
UPDATE semel_record
SET leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $3,
    due_at = CASE duty WHEN 1 /* lease */ THEN due_at
                  ELSE (extract(epoch from clock_timestamp()) * 1000000)::bigint + $3 END
WHERE identity = $1 AND fence = $2 AND state = 2 /* in_progress */
  AND leased_until > (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
