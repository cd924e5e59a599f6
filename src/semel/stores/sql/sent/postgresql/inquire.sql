-- Written by `python -m tools.queries` from queries/inquire.sql: change that file.
-- inquire: somebody is about to ask the provider, or gives up asking.
-- event: inquire
-- takes: $1 identity $2 seen $3 tries $4 again_in
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the number of tries is compared, so that of two reconcilers one asks.
UPDATE semel_record
SET tries = COALESCE(tries, 0) + 1,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4
WHERE identity = $1 AND fence = $2 AND state = 5 /* unknown */ AND COALESCE(tries, 0) = $3
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
