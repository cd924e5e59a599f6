-- Written by `python -m tools.queries` from queries/erase.sql: change that file.
-- erase: a settled record says nothing any more; that its key was used stays remembered.
-- event: erase
-- audits: erase expired
-- takes: identity seen nothing actor why
-- gives: state, leased_until, expires_at, now; no row when refused or already done
-- why: the identity alone refuses a second run. It is forgotten when it would have been. One without
--      a key was erased before.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       'erase', :actor, :why, identity, NULL, state,
       'expired'
FROM semel_record
WHERE identity = :identity AND fence = :seen AND `key` <> ''
  AND state IN ('completed', 'failed_retryable', 'expired')
FOR UPDATE;

UPDATE semel_record
SET state = 'expired', snapshot = NULL, request = NULL, journal = NULL, resource = NULL,
    reason = 'erased', fingerprint = '', fields = :nothing, tenant = '', path = '', `key` = '',
    duty = 'forget', due_at = forget_at
WHERE identity = :identity AND fence = :seen AND `key` <> ''
  AND state IN ('completed', 'failed_retryable', 'expired');

SELECT state, leased_until, expires_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
