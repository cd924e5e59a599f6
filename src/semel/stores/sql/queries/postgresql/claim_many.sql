-- claim_many: claim, for many identities at once: insert what is new, read what is there.
-- event: claim
-- takes: identity fence fingerprint fields tenant method path key on_lapse lease fresh_until
--        request terms
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
        CAST(:identity AS bytea[]), CAST(:fence AS bytea[]), CAST(:fingerprint AS bytea[]),
        CAST(:fields AS bytea[]), CAST(:tenant AS text[]), CAST(:method AS text[]),
        CAST(:path AS text[]), CAST(:key AS bytea[]), CAST(:on_lapse AS bigint[]),
        CAST(:lease AS bigint[]), CAST(:fresh_until AS bigint[]), CAST(:request AS bytea[]),
        CAST(:terms AS bigint[])
    ) AS given (identity, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
                lease, fresh_until, request, terms)
    ORDER BY given.identity
),
inserted AS (
    INSERT INTO semel_record
        (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
         created_at, leased_until, duty, due_at, request, terms)
    SELECT identity, {in_progress}, fence, fingerprint, fields, tenant, NULLIF(method, ''),
           NULLIF(path, ''), key, on_lapse, {now}, {now} + lease, CASE on_lapse WHEN {lapse.resume} THEN {duty.resume} ELSE {duty.lease} END,
           {now} + lease, request, terms
    FROM given
    WHERE fresh_until IS NULL OR fresh_until >= {now}
    ON CONFLICT (identity) DO NOTHING
    RETURNING identity, fence, created_at, leased_until
)
SELECT identity, CAST(NULL AS smallint), fence, CAST(NULL AS bytea), CAST(NULL AS bytea),
       CAST(NULL AS smallint), created_at, leased_until, CAST(NULL AS bigint),
       CAST(NULL AS bigint), CAST(NULL AS bytea), CAST(NULL AS text), CAST(NULL AS bigint), {now}
FROM inserted
UNION ALL
SELECT there.*
FROM (SELECT identity FROM given EXCEPT SELECT identity FROM inserted) AS known
CROSS JOIN LATERAL (
    SELECT {record}, {now}
    FROM semel_record
    WHERE identity = known.identity
    OFFSET 0
) AS there
