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
       'settle', :actor, :why, identity, NULL, state,
       'completed'
FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = 'unknown'
FOR UPDATE;

UPDATE semel_record
SET state = 'completed', fence = :fence, snapshot = :snapshot, leased_until = NULL,
    expires_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :retention,
    forget_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :retention
        + :tombstone,
    reason = :evidence, request = NULL, duty = 'expire',
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :retention
WHERE identity = :identity AND fence = :seen AND state = 'unknown';

SELECT state, leased_until, expires_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
