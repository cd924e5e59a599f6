-- Written by `python -m tools.queries` from queries/requeue_effect.sql: change that file.
-- requeue_effect: try a dead effect again, from now, with all its tries.
-- audits: retry waiting
-- takes: key died_at actor why
-- gives: now; no row when it is not dead
-- why: its fence is burnt: who failed at it has no more to say.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       'retry', :actor, :why, identity, `key`,
       state,
       'waiting'
FROM semel_effect
WHERE `key` = :key AND state = 'dead' AND dead_at = COALESCE(:died_at, dead_at)
FOR UPDATE;

UPDATE semel_effect
SET state = 'waiting', tries = 0, fence = NULL, dead_at = NULL,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
WHERE `key` = :key AND state = 'dead' AND dead_at = COALESCE(:died_at, dead_at);

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_effect
WHERE `key` = :key AND ROW_COUNT() > 0
