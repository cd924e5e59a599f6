-- Written by `python -m tools.queries` from queries/postgresql/read_many.sql: change that file.
-- read_many: read, for many identities at once.
-- takes: $1 identity
-- gives: the records that are there and now, in any order
-- why: as claim_many. What it does not give is read alone.
SELECT there.*
FROM unnest(CAST($1 AS bytea[])) AS known (identity)
CROSS JOIN LATERAL (
    SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
           CASE WHEN state = 3 /* completed */ THEN due_at END,
           CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
           CASE WHEN octet_length(snapshot) > 32768 THEN '\x00'::bytea || substr(snapshot, 1, 64)
                ELSE snapshot END, reason, retired_at,
           (extract(epoch from clock_timestamp()) * 1000000)::bigint
    FROM semel_record
    WHERE identity = known.identity
    OFFSET 0
) AS there
