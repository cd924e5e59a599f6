-- renew: push the end of the lease away.
-- event: renew
-- takes: identity fence lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: a lease that is past is not revived; others may already have been told that it lapsed. Where
--      the sweeper looks, due_at stays, so that this is a HOT update: it finds the lease renewed.
UPDATE semel_record
SET leased_until = {now} + :lease,
    due_at = CASE duty WHEN {duty.lease} THEN due_at ELSE {now} + :lease END
WHERE identity = :identity AND fence = :fence AND state = {in_progress} AND leased_until > {now}
RETURNING state, leased_until, {expires_at}, {now}
