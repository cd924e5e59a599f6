-- Written by `python -m tools.queries` from queries/settle_absent.sql: change that file.
-- settle_absent: evidence says that it did not happen and no longer can; burn the old fence.
-- event: settle: it did not
-- audits: settle failed_retryable
-- takes: identity seen fence retention evidence journal actor why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: with its fence burnt, a holder that was only paused can no longer complete the record.
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
       'failed_retryable'
FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */;

UPDATE semel_record
SET state = 4 /* failed_retryable */, fence = :fence, snapshot = NULL, leased_until = NULL,
    reason = :evidence, journal = COALESCE(:journal, journal),
    duty = 6 /* forget */, due_at = :now + :retention
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END, :now
