-- release: nothing happened, a retry may run.
-- event: release
-- takes: identity fence retention reason
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: never from unknown: once others were told "may have happened", only evidence decides.
UPDATE semel_record
SET state = 'failed_retryable', leased_until = NULL, forget_at = {now} + :retention,
    snapshot = NULL, reason = :reason
WHERE identity = :identity AND fence = :fence AND state = 'in_progress'
RETURNING state, leased_until, expires_at, {now}
