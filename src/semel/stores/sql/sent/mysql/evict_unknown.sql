-- Written by `python -m tools.queries` from queries/evict_unknown.sql: change that file.
-- evict_unknown: an operator gives up on an unknown record; its use stays remembered.
-- event: evict, forced
-- audits: bury expired
-- takes: identity seen fence tombstone reason actor why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: a tombstone answers later tries with "not executed again" instead of running them.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       'bury', :actor, :why, identity, NULL,
       CASE state
       WHEN 1 THEN 'pending'
       WHEN 2 THEN 'in_progress'
       WHEN 3 THEN 'completed'
       WHEN 4 THEN 'failed_retryable'
       WHEN 5 THEN 'unknown'
       WHEN 6 THEN 'expired' END,
       'expired'
FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */
FOR UPDATE;

UPDATE semel_record
SET state = 6 /* expired */, fence = :fence, snapshot = NULL, request = NULL, journal = NULL,
    leased_until = NULL, reason = :reason,
    duty = 6 /* forget */, due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        + :tombstone
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
