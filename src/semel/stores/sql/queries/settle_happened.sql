-- settle_happened: evidence says that it happened; store the answer and burn the old fence.
-- event: settle: it happened
-- audits: settle completed
-- takes: identity seen fence snapshot retention tombstone evidence
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: with its fence burnt, the late holder's own completion is refused and it answers from here.
UPDATE semel_record
SET state = {completed}, fence = :fence, snapshot = :snapshot, leased_until = NULL,
    forget_at = {now} + :retention + :tombstone,
    reason = :evidence, request = NULL, duty = {duty.expire}, due_at = {now} + :retention
WHERE identity = :identity AND fence = :seen AND state = {unknown}
RETURNING state, leased_until, {expires_at}, {now}
