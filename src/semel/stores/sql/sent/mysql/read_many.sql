-- Written by `python -m tools.queries` from queries/mysql/read_many.sql: change that file.
-- read_many: read, for many identities at once.
-- takes: identity
-- gives: the records that are there and now, in any order
-- why: as claim_many. What it does not give is read alone.
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       CASE WHEN LENGTH(snapshot) > 32768 THEN CONCAT(x'00', substr(snapshot, 1, 64))
            ELSE snapshot END, reason, retired_at,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity IN (:identity)
