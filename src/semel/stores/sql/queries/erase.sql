-- erase: a settled record says nothing any more; that its key was used stays remembered.
-- event: erase
-- audits: erase expired
-- takes: identity seen
-- gives: state, leased_until, expires_at, now; no row when refused or already done
-- why: the identity alone refuses a second run. It is forgotten when it would have been. One without
--      a fingerprint was erased before.
UPDATE semel_record
SET snapshot = NULL, request = NULL, journal = NULL, resource = NULL, reason = 'erased',
    fingerprint = NULL, fields = NULL, tenant = '', path = '', key = NULL,
    due_at = {forget_at}, forget_at = NULL, duty = {duty.forget}, state = {expired}
WHERE identity = :identity AND fence = :seen AND fingerprint IS NOT NULL
  AND state IN ({completed}, {failed_retryable}, {expired})
RETURNING state, leased_until, {expires_at}, {now}
