-- Written by `python -m tools.queries` from queries/renew_effects.sql: change that file.
-- renew_effects: push away the end of the lease of all that was taken with a fence.
-- takes: $1 fence $2 lease
-- gives: now for each
-- why: a lease that is past is not revived; others may already have taken the effect.
UPDATE semel_effect
SET leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $2,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $2
WHERE state = 'waiting'
  AND due_at > (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint) AND fence = $1
  AND leased_until > (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
