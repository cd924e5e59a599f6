-- Written by `python -m tools.queries` from queries/requeue_effect.sql: change that file.
-- requeue_effect: try a dead effect again, from now, with all its tries.
-- audits: retry waiting
-- takes: key died_at actor why
-- gives: now; no row when it is not dead
-- why: its fence is burnt: who failed at it has no more to say.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT :now,
       'retry', CAST(:actor AS text), CAST(:why AS text), identity, key,
       state,
       'waiting'
FROM semel_effect
WHERE key = :key AND state = 'dead' AND dead_at = COALESCE(:died_at, dead_at);

UPDATE semel_effect
SET state = 'waiting', tries = 0, fence = NULL, dead_at = NULL, due_at = :now
WHERE key = :key AND state = 'dead' AND dead_at = COALESCE(:died_at, dead_at)
RETURNING :now
