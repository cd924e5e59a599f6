-- requeue_effect: try a dead effect again, from now, with all its tries.
-- audits: retry waiting
-- takes: key died_at
-- gives: now; no row when it is not dead
-- why: its fence is burnt: who failed at it has no more to say.
UPDATE semel_effect
SET state = 'waiting', tries = 0, fence = NULL, dead_at = NULL, due_at = {now}
WHERE key = :key AND state = 'dead' AND dead_at = COALESCE(:died_at, dead_at)
RETURNING {now}
