-- Written by `python -m tools.queries` from queries/evict_unknown.sql: change that file.
-- evict_unknown: an operator gives up on an unknown record; its use stays remembered.
-- event: evict, forced
-- audits: bury expired
-- takes: $1 identity $2 seen $3 fence $4 tombstone $5 reason $6 actor $7 why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: a tombstone answers later tries with "not executed again" instead of running them.
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
           'bury', CAST($6 AS text), CAST($7 AS text), identity, subject, state_before,
           'expired'
    FROM seen
)
UPDATE semel_record
SET state = 6 /* expired */, fence = $3, snapshot = NULL, request = NULL, journal = NULL,
    leased_until = NULL, reason = $5,
    duty = 6 /* forget */, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4
WHERE identity = $1 AND fence = $2 AND state = 5 /* unknown */
  AND EXISTS (SELECT FROM seen)
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
