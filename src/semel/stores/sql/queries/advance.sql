-- advance: a recovery point was reached, or is about to be.
-- event: advance
-- takes: identity fence journal
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: asked again it writes the same journal again.
UPDATE semel_record
SET journal = :journal
WHERE identity = :identity AND fence = :fence AND state = {in_progress}
RETURNING state, leased_until, {expires_at}, {now}
