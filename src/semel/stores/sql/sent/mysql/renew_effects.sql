-- Written by `python -m tools.queries` from queries/mysql/renew_effects.sql: change that file.
-- renew_effects: push away the end of the lease of all that was taken with a fence.
-- takes: fence lease
-- gives: now for each
-- why: a lease that is past is not revived; others may already have taken the effect. What was
--      renewed is what this fence holds after it.
UPDATE semel_effect
SET leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease
WHERE state = 'waiting'
  AND due_at > (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND fence = :fence AND leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM semel_effect
WHERE state = 'waiting'
  AND due_at > (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND fence = :fence AND leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
