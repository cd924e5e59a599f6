-- Written by `python -m tools.queries` from queries/erase.sql: change that file.
-- erase: a settled record says nothing any more; that its key was used stays remembered.
-- event: erase
-- audits: erase expired
-- takes: $1 identity $2 seen $3 nothing $4 actor $5 why
-- gives: state, leased_until, expires_at, now; no row when refused or already done
-- why: the identity alone refuses a second run. It is forgotten when it would have been. One without
--      a key was erased before.
WITH seen AS MATERIALIZED (
    SELECT identity, state, CAST(NULL AS text) AS subject FROM semel_record
    WHERE identity = $1 AND fence = $2 AND key <> ''
      AND state IN ('completed', 'failed_retryable', 'expired')
    FOR UPDATE
),
noted AS (
    INSERT INTO semel_audit
        (at, verb, actor, reason, identity, subject, state_before, state_after)
    SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint,
           'erase', CAST($4 AS text), CAST($5 AS text), identity, subject, state,
           'expired'
    FROM seen
)
UPDATE semel_record
SET state = 'expired', snapshot = NULL, request = NULL, journal = NULL, resource = NULL,
    reason = 'erased', fingerprint = '', fields = $3, tenant = '', path = '', key = '',
    duty = 'forget', due_at = forget_at
WHERE identity = $1 AND fence = $2 AND key <> ''
  AND state IN ('completed', 'failed_retryable', 'expired')
  AND EXISTS (SELECT FROM seen)
RETURNING state, leased_until, expires_at, (extract(epoch from clock_timestamp()) * 1000000)::bigint
