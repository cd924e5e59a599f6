-- Written by `python -m tools.queries` from queries/open.sql: change that file.
-- open: store an open receipt; the response has started and its body will not be kept.
-- event: advance
-- takes: $1 identity $2 fence $3 snapshot
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the record stays in_progress: if the stream breaks off, the receipt is evidence.
UPDATE semel_record
SET snapshot = $3
WHERE identity = $1 AND fence = $2 AND state = 2 /* in_progress */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
