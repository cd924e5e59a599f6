-- Written by `python -m tools.queries` from queries/open.sql: change that file.
-- open: store an open receipt; the response has started and its body will not be kept.
-- event: advance
-- takes: identity fence snapshot
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the record stays in_progress: if the stream breaks off, the receipt is evidence.
UPDATE semel_record
SET snapshot = :snapshot
WHERE identity = :identity AND fence = :fence AND state = 2 /* in_progress */;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
