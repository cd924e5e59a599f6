-- Written by `python -m tools.queries` from queries/settle_call.sql: change that file.
-- settle_call: evidence says that an operation's call happened; it can be resumed with its result.
-- event: settle: its call happened
-- audits: settle in_progress
-- takes: $1 identity $2 seen $3 fence $4 journal $5 evidence $6 actor $7 why
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the lease is past from the start: whoever comes next, a request or the completer, resumes it.
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
    WHERE identity = $1 AND fence = $2 AND state = 5 /* unknown */ AND on_lapse = 3 /* resume */
    FOR UPDATE
),
noted AS (
    INSERT INTO semel_audit
        (at, verb, actor, reason, identity, subject, state_before, state_after)
    SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint,
           'settle', CAST($6 AS text), CAST($7 AS text), identity, subject, state_before,
           'in_progress'
    FROM seen
)
UPDATE semel_record
SET state = 2 /* in_progress */, fence = $3, journal = $4,
    leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint,
    duty = 2 /* resume */, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint,
    tries = NULL, snapshot = NULL, reason = $5
WHERE identity = $1 AND fence = $2 AND state = 5 /* unknown */ AND on_lapse = 3 /* resume */
  AND EXISTS (SELECT FROM seen)
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
