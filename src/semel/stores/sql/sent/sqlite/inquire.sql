-- Written by `python -m tools.queries` from queries/inquire.sql: change that file.
-- inquire: somebody is about to ask the provider, or gives up asking.
-- event: inquire
-- takes: identity seen tries again_in
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the number of tries is compared, so that of two reconcilers one asks.
UPDATE semel_record
SET tries = COALESCE(tries, 0) + 1, due_at = :now + :again_in
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */ AND COALESCE(tries,
0) = :tries
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END, :now
