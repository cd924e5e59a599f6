-- evict_unknown: an operator gives up on an unknown record; its use stays remembered.
-- event: evict, forced
-- audits: bury expired
-- takes: identity seen fence tombstone reason
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: a tombstone answers later tries with "not executed again" instead of running them.
UPDATE semel_record
SET state = {expired}, fence = :fence, snapshot = NULL, request = NULL, journal = NULL,
    leased_until = NULL, reason = :reason,
    duty = {duty.forget}, due_at = {now} + :tombstone
WHERE identity = :identity AND fence = :seen AND state = {unknown}
RETURNING state, leased_until, {expires_at}, {now}
