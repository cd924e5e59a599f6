-- Written by `python -m tools.queries` from queries/settle_happened.sql: change that file.
-- settle_happened: evidence says that it happened; store the answer and burn the old fence.
-- event: settle: it happened
-- audits: settle completed
-- takes: identity seen fence snapshot retention tombstone evidence actor why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: with its fence burnt, the late holder's own completion is refused and it answers from here.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       'settle', :actor, :why, identity, NULL,
       CASE state
       WHEN 1 THEN 'pending'
       WHEN 2 THEN 'in_progress'
       WHEN 3 THEN 'completed'
       WHEN 4 THEN 'failed_retryable'
       WHEN 5 THEN 'unknown'
       WHEN 6 THEN 'expired' END,
       'completed'
FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */
FOR UPDATE;

UPDATE semel_record
SET state = 3 /* completed */, fence = :fence, snapshot = :snapshot, leased_until = NULL,
    forget_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :retention
        + :tombstone,
    reason = :evidence, request = NULL, duty = 5 /* expire */,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :retention
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
