-- Written by `python -m tools.queries` from queries/fail.sql: change that file.
-- fail: a delivery failed; again later, or never.
-- takes: key fence error again_in
-- gives: now; no row when refused or already told
-- why: the fence stays, so that the same failure told twice is one failure.
UPDATE semel_effect
SET state = CASE WHEN CAST(:again_in AS bigint) IS NULL THEN 'dead' ELSE 'waiting' END,
    dead_at = CASE WHEN CAST(:again_in AS bigint) IS NULL THEN :now END,
    due_at = :now + CAST(:again_in AS bigint), leased_until = NULL, error = :error
WHERE key = :key AND fence = :fence AND state = 'waiting' AND leased_until IS NOT NULL
RETURNING :now
