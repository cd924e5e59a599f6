-- settle_absent: evidence says that it did not happen and no longer can; burn the old fence.
-- event: settle: it did not
-- audits: settle failed_retryable
-- takes: identity seen fence retention evidence journal
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: with its fence burnt, a holder that was only paused can no longer complete the record.
UPDATE semel_record
SET state = {failed_retryable}, fence = :fence, snapshot = NULL, leased_until = NULL,
    reason = :evidence, journal = COALESCE(:journal, journal),
    duty = {duty.forget}, due_at = {now} + :retention
WHERE identity = :identity AND fence = :seen AND state = {unknown}
RETURNING state, leased_until, {expires_at}, {now}
