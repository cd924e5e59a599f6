-- Written by `python -m tools.queries` from queries/renew_effects.sql: change that file.
-- renew_effects: push away the end of the lease of all that was taken with a fence.
-- takes: fence lease
-- gives: now for each
-- why: a lease that is past is not revived; others may already have taken the effect.
UPDATE semel_effect
SET leased_until = :now + :lease, due_at = :now + :lease
WHERE state = 'waiting' AND due_at > (SELECT :now) AND fence = :fence AND leased_until > :now
RETURNING :now
