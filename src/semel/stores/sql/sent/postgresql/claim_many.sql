-- Written by `python -m tools.queries` from queries/postgresql/claim_many.sql: change that file.
-- claim_many: claim, for many identities at once: insert what is new, read what is there.
-- event: claim
-- takes: $1 identity $2 fence $3 fingerprint $4 fields $5 tenant $6 method $7 path $8 key
--        $9 on_lapse $10 lease $11 fresh_until $12 request $13 terms
-- gives: for a new record its identity, fence, times and now, its state being NULL; for an
--        existing one the record and now; in any order. No row where claim gives none
-- why: one commit for all. Each parameter is an array, one element per row; no identity may be in
--      it twice. Rows are locked in the order of identities, as every batch does it. Waiting for
--      another's lock ends soon, for all wait: set_config is local to this one statement.
--      OFFSET 0: identities are looked up one by one, each in its own partition, if there are any.
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', '100ms', true)
),
given AS MATERIALIZED (
    SELECT given.*
    FROM patience CROSS JOIN unnest(
        CAST($1 AS bytea[]), CAST($2 AS bytea[]), CAST($3 AS bytea[]),
        CAST($4 AS bytea[]), CAST($5 AS text[]), CAST($6 AS text[]),
        CAST($7 AS text[]), CAST($8 AS bytea[]), CAST($9 AS bigint[]),
        CAST($10 AS bigint[]), CAST($11 AS bigint[]), CAST($12 AS bytea[]),
        CAST($13 AS bigint[])
    ) AS given (identity, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
                lease, fresh_until, request, terms)
    ORDER BY given.identity
),
inserted AS (
    INSERT INTO semel_record
        (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
         created_at, leased_until, duty, due_at, request, terms)
    SELECT identity, 2 /* in_progress */, fence, fingerprint, fields, tenant, NULLIF(method, ''),
           NULLIF(path, ''), key, on_lapse,
           (extract(epoch from clock_timestamp()) * 1000000)::bigint,
           (extract(epoch from clock_timestamp()) * 1000000)::bigint + lease, CASE on_lapse
                                                                                   WHEN 3 /* resume */
           THEN 2 /* resume */ ELSE 1 /* lease */ END,
           (extract(epoch from clock_timestamp()) * 1000000)::bigint + lease, request, terms
    FROM given
    WHERE fresh_until IS NULL
      OR fresh_until >= (extract(epoch from clock_timestamp()) * 1000000)::bigint
    ON CONFLICT (identity) DO NOTHING
    RETURNING identity, fence, created_at, leased_until
)
SELECT identity, CAST(NULL AS smallint), fence, CAST(NULL AS bytea), CAST(NULL AS bytea),
       CAST(NULL AS smallint), created_at, leased_until, CAST(NULL AS bigint),
       CAST(NULL AS bigint), CAST(NULL AS bytea), CAST(NULL AS text), CAST(NULL AS bigint),
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM inserted
UNION ALL
SELECT there.*
FROM (SELECT identity FROM given EXCEPT SELECT identity FROM inserted) AS known
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
