-- Written by `python -m tools.queries` from queries/erase.sql: change that file.
-- erase: a settled record says nothing any more; that its key was used stays remembered.
-- event: erase
-- audits: erase expired
-- takes: identity seen actor why
-- gives: state, leased_until, expires_at, now; no row when refused or already done
-- why: the identity alone refuses a second run. It is forgotten when it would have been. One without
--      a fingerprint was erased before.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT :now,
       'erase', CAST(:actor AS text), CAST(:why AS text), identity, CAST(NULL AS text),
       CASE state
       WHEN 1 THEN 'pending'
       WHEN 2 THEN 'in_progress'
       WHEN 3 THEN 'completed'
       WHEN 4 THEN 'failed_retryable'
       WHEN 5 THEN 'unknown'
       WHEN 6 THEN 'expired' END,
       'expired'
FROM semel_record
WHERE identity = :identity AND fence = :seen AND fingerprint IS NOT NULL
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */);

UPDATE semel_record
SET snapshot = NULL, request = NULL, journal = NULL, resource = NULL, reason = 'erased',
    fingerprint = NULL, fields = NULL, tenant = '', path = '', key = NULL,
    due_at = CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
    forget_at = NULL, duty = 6 /* forget */, state = 6 /* expired */
WHERE identity = :identity AND fence = :seen AND fingerprint IS NOT NULL
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */)
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END, :now
