-- Written by `python -m tools.queries` from queries/mysql/complete_many.sql: change that file.
-- complete_many: complete, for many records at once.
-- event: complete
-- takes: identity fence snapshot retention tombstone resource
-- gives: identity, state, leased_until, expires_at and now of each that is completed under its fence,
--        now or by an earlier try, in any order
-- why: as claim_many. The primary key is the way to the records, so that they are locked in the order
--      of identities, and no others. What is set sees what was set before it.
UPDATE semel_record FORCE INDEX (PRIMARY)
SET state = 3 /* completed */, snapshot = ELT(FIELD(identity, :identity), :snapshot),
    leased_until = NULL,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + CAST(ELT(FIELD(identity,
    :identity), :retention) AS SIGNED),
    forget_at = due_at + CAST(ELT(FIELD(identity, :identity), :tombstone) AS SIGNED),
    reason = NULL, resource = ELT(FIELD(identity, :identity), :resource), request = NULL,
    duty = 5 /* expire */
WHERE identity IN (:identity) AND fence = ELT(FIELD(identity, :identity), :fence)
  AND state IN (2 /* in_progress */, 5 /* unknown */);

SELECT identity, state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity IN (:identity) AND fence = ELT(FIELD(identity, :identity), :fence)
  AND state = 3 /* completed */
