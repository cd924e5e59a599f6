-- Written by `python -m tools.queries` from queries/requeue_effect.sql: change that file.
-- requeue_effect: try a dead effect again, from now, with all its tries.
-- audits: retry waiting
-- takes: $1 key $2 died_at $3 actor $4 why
-- gives: now; no row when it is not dead
-- why: its fence is burnt: who failed at it has no more to say.
WITH seen AS MATERIALIZED (
    SELECT identity, key AS subject,
           state AS state_before
    FROM semel_effect
    WHERE key = $1 AND state = 'dead' AND dead_at = COALESCE($2, dead_at)
    FOR UPDATE
),
noted AS (
    INSERT INTO semel_audit
        (at, verb, actor, reason, identity, subject, state_before, state_after)
    SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint,
           'retry', CAST($3 AS text), CAST($4 AS text), identity, subject, state_before,
           'waiting'
    FROM seen
)
UPDATE semel_effect
SET state = 'waiting', tries = 0, fence = NULL, dead_at = NULL,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint
WHERE key = $1 AND state = 'dead' AND dead_at = COALESCE($2, dead_at)
  AND EXISTS (SELECT FROM seen)
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
