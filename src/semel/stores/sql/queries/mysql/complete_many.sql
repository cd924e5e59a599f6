-- complete_many: complete, for many records at once.
-- event: complete
-- takes: identity fence snapshot retention tombstone resource
-- gives: identity, state, leased_until, expires_at and now of each that is completed under its fence,
--        now or by an earlier try, in any order
-- why: as claim_many. The primary key is the way to the records, so that they are locked in the order
--      of identities, and no others. What is set sees what was set before it.
UPDATE semel_record FORCE INDEX (PRIMARY)
SET state = {completed}, snapshot = ELT(FIELD(identity, :identity), :snapshot),
    leased_until = NULL,
    due_at = {now} + CAST(ELT(FIELD(identity, :identity), :retention) AS SIGNED),
    forget_at = due_at + CAST(ELT(FIELD(identity, :identity), :tombstone) AS SIGNED),
    reason = NULL, resource = ELT(FIELD(identity, :identity), :resource), request = NULL,
    duty = {duty.expire}
WHERE identity IN (:identity) AND fence = ELT(FIELD(identity, :identity), :fence)
  AND state IN ({in_progress}, {unknown});
SELECT identity, state, leased_until, {expires_at}, {now}
FROM semel_record
WHERE identity IN (:identity) AND fence = ELT(FIELD(identity, :identity), :fence)
  AND state = {completed}
