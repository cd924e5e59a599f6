-- Written by `python -m tools.queries` from queries/advance.sql: change that file.
-- advance: a recovery point was reached, or is about to be.
-- event: advance
-- takes: $1 identity $2 fence $3 journal
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: asked again it writes the same journal again.
UPDATE semel_record
SET journal = $3
WHERE identity = $1 AND fence = $2 AND state = 2 /* in_progress */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
