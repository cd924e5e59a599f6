-- Written by `python -m tools.queries` from queries/suspend.sql: change that file.
-- suspend: it may have happened; only evidence decides from here.
-- event: suspend
-- takes: $1 identity $2 fence $3 reason $4 probe_after
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the fence stays, so that the holder's late result can still complete the record; there is no
--      expiry, so that it never becomes free by time. Nobody to be asked: due never, a dead letter.
UPDATE semel_record
SET state = 5 /* unknown */, leased_until = NULL, reason = $3, tries = NULL, duty = 4 /* ask */,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4
WHERE identity = $1 AND fence = $2 AND state = 2 /* in_progress */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
