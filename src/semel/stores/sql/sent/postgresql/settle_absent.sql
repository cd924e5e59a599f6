-- Written by `python -m tools.queries` from queries/settle_absent.sql: change that file.
-- settle_absent: evidence says that it did not happen and no longer can; burn the old fence.
-- event: settle: it did not
-- audits: settle failed_retryable
-- takes: $1 identity $2 seen $3 fence $4 retention $5 evidence $6 journal $7 actor $8 why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: with its fence burnt, a holder that was only paused can no longer complete the record.
WITH seen AS MATERIALIZED (
    SELECT identity, state, CAST(NULL AS text) AS subject FROM semel_record
    WHERE identity = $1 AND fence = $2 AND state = 'unknown'
    FOR UPDATE
),
noted AS (
    INSERT INTO semel_audit
        (at, verb, actor, reason, identity, subject, state_before, state_after)
    SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint,
           'settle', CAST($7 AS text), CAST($8 AS text), identity, subject, state,
           'failed_retryable'
    FROM seen
)
UPDATE semel_record
SET state = 'failed_retryable', fence = $3, snapshot = NULL, leased_until = NULL,
    forget_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4, reason = $5,
    journal = COALESCE($6, journal),
    duty = 'forget', due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4
WHERE identity = $1 AND fence = $2 AND state = 'unknown'
  AND EXISTS (SELECT FROM seen)
RETURNING state, leased_until, expires_at, (extract(epoch from clock_timestamp()) * 1000000)::bigint
