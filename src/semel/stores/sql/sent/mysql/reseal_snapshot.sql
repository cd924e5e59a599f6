-- Written by `python -m tools.queries` from queries/reseal_snapshot.sql: change that file.
-- reseal_snapshot: exchange a snapshot for other bytes that mean the same.
-- takes: identity seen old new
-- gives: state, leased_until, expires_at, now; no row when it has changed
-- why: whoever wrote it meanwhile, under whatever fence, keeps what was written.
UPDATE semel_record
SET snapshot = :new
WHERE identity = :identity AND fence = :seen AND snapshot = :old;

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
