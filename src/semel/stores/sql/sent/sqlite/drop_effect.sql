-- Written by `python -m tools.queries` from queries/drop_effect.sql: change that file.
-- drop_effect: a dead effect is given up for good.
-- audits: drop -
-- takes: key died_at actor why
-- gives: now; no row when it is not dead
-- why: only dead ones: what waits may be under way.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT :now,
       'drop', CAST(:actor AS text), CAST(:why AS text), identity, key,
       state,
       CAST(NULL AS text)
FROM semel_effect
WHERE key = :key AND state = 'dead' AND dead_at = COALESCE(:died_at, dead_at);

DELETE FROM semel_effect
WHERE key = :key AND state = 'dead' AND dead_at = COALESCE(:died_at, dead_at)
RETURNING :now
