-- Written by `python -m tools.queries` from queries/postgresql/accept.sql: change that file.
-- accept: insert a pending record with its request unless the key is too old to start one, or read
--         what is there.
-- event: accept
-- takes: $1 identity $2 fence $3 fingerprint $4 fields $5 tenant $6 method $7 path $8 key
--        $9 on_lapse $10 patience $11 fresh_until $12 request $13 terms
-- gives: the new or the existing record and now; no row when a rival committed after this
--        statement's snapshot was taken, or when nothing is there and the key is too old
-- why: as claim. The workers are woken when it is committed. Commits that notify queue up for one
--      lock of the server, so of those under way at once (in one tenth of a second) one does, and
--      whoever listens looks a second time soon after. To look at what others have accepted, as
--      enqueue does, would be to look in every partition. 1936026981 is "seme".
WITH inserted AS (
    INSERT INTO semel_record
        (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
         created_at, leased_until, duty, due_at, patience, abandon_at, request, terms)
    SELECT CAST($1 AS bytea), 1 /* pending */, CAST($2 AS bytea),
           CAST($3 AS bytea), CAST($4 AS bytea), CAST($5 AS text),
           NULLIF(CAST($6 AS text), ''), NULLIF(CAST($7 AS text), ''), CAST($8 AS bytea),
           CAST($9 AS smallint), moment, moment + CAST($10 AS bigint), 3 /* run */, moment,
           CAST($10 AS bigint), moment + CAST($10 AS bigint), CAST($12 AS bytea),
           CAST($13 AS bigint)
    FROM (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint AS moment) AS clock
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
WHERE CASE WHEN pg_try_advisory_xact_lock(1936026981,
((extract(epoch from clock_timestamp()) * 1000000)::bigint / 100000 % 1000000)::int)
           THEN pg_notify('semel_work', '') IS NOT NULL
           ELSE true END
UNION ALL
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       CASE WHEN octet_length(snapshot) > 32768 THEN '\x00'::bytea || substr(snapshot, 1, 64)
            ELSE snapshot END, reason, retired_at,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_record
WHERE identity = CAST($1 AS bytea) AND NOT EXISTS (SELECT FROM inserted)
