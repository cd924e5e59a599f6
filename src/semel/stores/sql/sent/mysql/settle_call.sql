-- Written by `python -m tools.queries` from queries/settle_call.sql: change that file.
-- settle_call: evidence says that an operation's call happened; it can be resumed with its result.
-- event: settle: its call happened
-- audits: settle in_progress
-- takes: identity seen fence journal evidence actor why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the lease is past from the start: whoever comes next, a request or the completer, resumes it.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       'settle', :actor, :why, identity, NULL, state,
       'in_progress'
FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = 'unknown' AND on_lapse = 'resume'
FOR UPDATE;

UPDATE semel_record
SET state = 'in_progress', fence = :fence, journal = :journal,
    leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
    duty = 'resume', due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
    tries = 0, snapshot = NULL, reason = :evidence
WHERE identity = :identity AND fence = :seen AND state = 'unknown' AND on_lapse = 'resume';

SELECT state, leased_until, expires_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
