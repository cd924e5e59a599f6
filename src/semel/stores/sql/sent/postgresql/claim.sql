-- Written by `python -m tools.queries` from queries/postgresql/claim.sql: change that file.
-- claim: insert an in_progress record unless the key is too old to start one, or read what is there.
-- event: claim
-- takes: $1 identity $2 fence $3 fingerprint $4 fields $5 tenant $6 method $7 path $8 key
--        $9 on_lapse $10 lease $11 fresh_until $12 request $13 terms
-- gives: the new or the existing record and now; no row when a rival committed after this
--        statement's snapshot was taken, or when nothing is there and the key is too old
-- why: one round trip, and nothing is written when the record exists. DO UPDATE would return the
--      rival's row at once, but it writes (and bloats) on every replay. NOT EXISTS: a record that
--      was forgotten after the snapshot was taken would be returned beside the new one.
WITH inserted AS (
    INSERT INTO semel_record
        (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
         created_at, leased_until, duty, due_at, request, terms)
    SELECT CAST($1 AS bytea), 2 /* in_progress */, CAST($2 AS bytea),
           CAST($3 AS bytea), CAST($4 AS bytea), CAST($5 AS text),
           NULLIF(CAST($6 AS text), ''), NULLIF(CAST($7 AS text), ''), CAST($8 AS bytea),
           CAST($9 AS smallint), (extract(epoch from clock_timestamp()) * 1000000)::bigint,
           (extract(epoch from clock_timestamp()) * 1000000)::bigint + CAST($10 AS bigint),
           CASE CAST($9 AS smallint)
           WHEN 3 /* resume */ THEN 2 /* resume */ ELSE 1 /* lease */ END,
           (extract(epoch from clock_timestamp()) * 1000000)::bigint + CAST($10 AS bigint),
           CAST($12 AS bytea),
           CAST($13 AS bigint)
    WHERE CAST($11 AS bigint) IS NULL
      OR CAST($11 AS bigint) >= (extract(epoch from clock_timestamp()) * 1000000)::bigint
    ON CONFLICT (identity) DO NOTHING
    RETURNING identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
              CAST(NULL AS bigint) AS expires_at, forget_at, snapshot, reason, retired_at
)
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       expires_at, forget_at, snapshot, reason, retired_at,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM inserted
UNION ALL
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       CASE WHEN octet_length(snapshot) > 32768 THEN '\x00'::bytea || substr(snapshot, 1, 64)
            ELSE snapshot END, reason, retired_at,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_record
WHERE identity = CAST($1 AS bytea) AND NOT EXISTS (SELECT FROM inserted)
