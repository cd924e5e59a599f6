-- Written by `python -m tools.queries` from queries/settle_absent.sql: change that file.
-- settle_absent: evidence says that it did not happen and no longer can; burn the old fence.
-- event: settle: it did not
-- audits: settle failed_retryable
-- takes: $1 identity $2 seen $3 fence $4 retention $5 evidence $6 journal $7 actor $8 why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: with its fence burnt, a holder that was only paused can no longer complete the record.
WITH seen AS MATERIALIZED (
    SELECT identity, CAST(NULL AS text) AS subject,
           CASE state
           WHEN 1 THEN 'pending'
           WHEN 2 THEN 'in_progress'
           WHEN 3 THEN 'completed'
           WHEN 4 THEN 'failed_retryable'
           WHEN 5 THEN 'unknown'
           WHEN 6 THEN 'expired' END AS state_before
    FROM semel_record
    WHERE identity = $1 AND fence = $2 AND state = 5 /* unknown */
    FOR UPDATE
),
noted AS (
    INSERT INTO semel_audit
        (at, verb, actor, reason, identity, subject, state_before, state_after)
    SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint,
           'settle', CAST($7 AS text), CAST($8 AS text), identity, subject, state_before,
           'failed_retryable'
    FROM seen
)
UPDATE semel_record
SET state = 4 /* failed_retryable */, fence = $3, snapshot = NULL, leased_until = NULL,
    reason = $5, journal = COALESCE($6, journal),
    duty = 6 /* forget */, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4
WHERE identity = $1 AND fence = $2 AND state = 5 /* unknown */
  AND EXISTS (SELECT FROM seen)
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
