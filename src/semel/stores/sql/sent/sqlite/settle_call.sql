-- Written by `python -m tools.queries` from queries/settle_call.sql: change that file.
-- settle_call: evidence says that an operation's call happened; it can be resumed with its result.
-- event: settle: its call happened
-- audits: settle in_progress
-- takes: identity seen fence journal evidence actor why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the lease is past from the start: whoever comes next, a request or the completer, resumes it.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT :now,
       'settle', CAST(:actor AS text), CAST(:why AS text), identity, CAST(NULL AS text),
       CASE state
       WHEN 1 THEN 'pending'
       WHEN 2 THEN 'in_progress'
       WHEN 3 THEN 'completed'
       WHEN 4 THEN 'failed_retryable'
       WHEN 5 THEN 'unknown'
       WHEN 6 THEN 'expired' END,
       'in_progress'
FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */
  AND on_lapse = 3 /* resume */;

UPDATE semel_record
SET state = 2 /* in_progress */, fence = :fence, journal = :journal, leased_until = :now,
    duty = 2 /* resume */, due_at = :now, tries = NULL, snapshot = NULL, reason = :evidence
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */
  AND on_lapse = 3 /* resume */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END, :now
