-- Written by `python -m tools.queries` from queries/read.sql: change that file.
-- read: look at one record, change nothing.
-- takes: identity
-- gives: the record and now, always exactly one row; identity is NULL when there is no record
-- why: an answer needs the store's clock even when nothing is there, hence the outer join.
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       CASE WHEN length(snapshot) > 32768 THEN CAST(x'00' || substr(snapshot, 1, 64) AS BLOB)
            ELSE snapshot END, reason, retired_at, :now
FROM (SELECT 1 AS one) AS here
LEFT JOIN semel_record AS record ON record.identity = :identity
