-- Written by `python -m tools.queries` from queries/fail.sql: change that file.
-- fail: a delivery failed; again later, or never.
-- takes: $1 key $2 fence $3 error $4 again_in
-- gives: now; no row when refused or already told
-- why: the fence stays, so that the same failure told twice is one failure.
UPDATE semel_effect
SET state = CASE WHEN CAST($4 AS bigint) IS NULL THEN 'dead' ELSE 'waiting' END,
    dead_at = CASE WHEN CAST($4 AS bigint) IS NULL
                   THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint END,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + CAST($4 AS bigint),
    leased_until = NULL, error = $3
WHERE key = $1 AND fence = $2 AND state = 'waiting' AND leased_until IS NOT NULL
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
