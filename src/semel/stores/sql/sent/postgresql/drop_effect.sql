-- Written by `python -m tools.queries` from queries/drop_effect.sql: change that file.
-- drop_effect: a dead effect is given up for good.
-- audits: drop -
-- takes: $1 key $2 died_at $3 actor $4 why
-- gives: now; no row when it is not dead
-- why: only dead ones: what waits may be under way.
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
           'drop', CAST($3 AS text), CAST($4 AS text), identity, subject, state_before,
           CAST(NULL AS text)
    FROM seen
)
DELETE FROM semel_effect
WHERE key = $1 AND state = 'dead' AND dead_at = COALESCE($2, dead_at)
  AND EXISTS (SELECT FROM seen)
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
