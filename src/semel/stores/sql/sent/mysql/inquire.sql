-- Written by `python -m tools.queries` from queries/inquire.sql: change that file.
-- inquire: somebody is about to ask the provider, or gives up asking.
-- event: inquire
-- takes: identity seen tries again_in
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the number of tries is compared, so that of two reconcilers one asks.
UPDATE semel_record
SET tries = COALESCE(tries, 0) + 1,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :again_in
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */ AND COALESCE(tries,
0) = :tries;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
