-- complete: store the answer.
-- event: complete
-- takes: identity fence snapshot retention tombstone resource
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: also from unknown, for the fence that last held it: the late result is evidence. A lease that
--      is past does not matter as long as nobody acted on it.
UPDATE semel_record
SET state = {completed}, snapshot = :snapshot, leased_until = NULL,
    duty = {duty.expire}, due_at = {now} + :retention,
    forget_at = {now} + :retention + :tombstone, reason = NULL, resource = :resource,
    request = NULL
WHERE identity = :identity AND fence = :fence AND state IN ({in_progress}, {unknown})
RETURNING state, leased_until, {expires_at}, {now}
