-- drop_effect: a dead effect is given up for good.
-- audits: drop -
-- takes: key died_at
-- gives: now; no row when it is not dead
-- why: only dead ones: what waits may be under way.
DELETE FROM semel_effect
WHERE key = :key AND state = 'dead' AND dead_at = COALESCE(:died_at, dead_at)
RETURNING {now}
