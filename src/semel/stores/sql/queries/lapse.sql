-- lapse: the holder's time is up; unknown, or failed_retryable where the claim declared it.
-- event: lapse
-- event: lapse, declared release
-- takes: identity seen retention
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the fence stays: the late holder's completion is evidence. An open receipt stays with unknown.
UPDATE semel_record
SET state = CASE on_lapse WHEN 'release' THEN 'failed_retryable' ELSE 'unknown' END,
    forget_at = CASE on_lapse WHEN 'release' THEN {now} + :retention END,
    snapshot = CASE on_lapse WHEN 'release' THEN NULL ELSE snapshot END,
    leased_until = NULL, reason = 'the lease ran out'
WHERE identity = :identity AND fence = :seen AND state = 'in_progress' AND leased_until <= {now}
RETURNING state, leased_until, expires_at, {now}
