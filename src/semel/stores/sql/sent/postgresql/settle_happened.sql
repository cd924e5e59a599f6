-- Written by `python -m tools.queries` from queries/settle_happened.sql: change that file.
-- settle_happened: evidence says that it happened; store the answer and burn the old fence.
-- event: settle: it happened
-- audits: settle completed
-- takes: $1 identity $2 seen $3 fence $4 snapshot $5 retention $6 tombstone $7 evidence $8 actor
--        $9 why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: with its fence burnt, the late holder's own completion is refused and it answers from here.
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
           'settle', CAST($8 AS text), CAST($9 AS text), identity, subject, state_before,
           'completed'
    FROM seen
)
UPDATE semel_record
SET state = 3 /* completed */, fence = $3, snapshot = $4, leased_until = NULL,
    forget_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $5 + $6,
    reason = $7, request = NULL, duty = 5 /* expire */,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $5
WHERE identity = $1 AND fence = $2 AND state = 5 /* unknown */
  AND EXISTS (SELECT FROM seen)
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
