-- Written by `python -m tools.queries` from queries/sqlite/look.sql: change that file.
-- look: read, for the connections that only look.
-- takes: identity
-- gives: the record; no row when there is none
-- why: SQLite's clock is the store's own, so unlike read it needs no row to carry it.
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       CASE WHEN length(snapshot) > 32768 THEN CAST(x'00' || substr(snapshot, 1, 64) AS BLOB)
            ELSE snapshot END, reason, retired_at
FROM semel_record WHERE identity = :identity
