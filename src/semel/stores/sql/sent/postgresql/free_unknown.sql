-- Written by `python -m tools.queries` from queries/free_unknown.sql: change that file.
-- free_unknown: an operator gives up on an unknown record and frees the key on purpose.
-- event: evict, forced and freed on purpose
-- audits: free -
-- takes: $1 identity $2 seen $3 actor $4 why
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: the one way an unsettled key becomes free; a person said so, with a reason that is audited.
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
           'free', CAST($3 AS text), CAST($4 AS text), identity, subject, state_before,
           CAST(NULL AS text)
    FROM seen
)
DELETE FROM semel_record
WHERE identity = $1 AND fence = $2 AND state = 5 /* unknown */
  AND EXISTS (SELECT FROM seen)
RETURNING CAST(NULL AS smallint), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT),
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
