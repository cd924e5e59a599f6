-- claim: insert an in_progress record unless the key is too old to start one, or read what is there.
-- event: claim
-- takes: identity fence fingerprint fields tenant method path key on_lapse lease fresh_until
--        request terms
-- gives: the new or the existing record and now; no row when a rival committed after this
--        statement's snapshot was taken, or when nothing is there and the key is too old
-- why: one round trip, and nothing is written when the record exists. DO UPDATE would return the
--      rival's row at once, but it writes (and bloats) on every replay. NOT EXISTS: a record that
--      was forgotten after the snapshot was taken would be returned beside the new one.
WITH inserted AS (
    INSERT INTO semel_record
        (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
         created_at, leased_until, duty, due_at, request, terms)
    SELECT CAST(:identity AS bytea), {in_progress}, CAST(:fence AS bytea),
           CAST(:fingerprint AS bytea), CAST(:fields AS bytea), CAST(:tenant AS text),
           NULLIF(CAST(:method AS text), ''), NULLIF(CAST(:path AS text), ''), CAST(:key AS bytea),
           CAST(:on_lapse AS smallint), {now}, {now} + CAST(:lease AS bigint),
           CASE CAST(:on_lapse AS smallint)
           WHEN {lapse.resume} THEN {duty.resume} ELSE {duty.lease} END,
           {now} + CAST(:lease AS bigint), CAST(:request AS bytea),
           CAST(:terms AS bigint)
    WHERE CAST(:fresh_until AS bigint) IS NULL OR CAST(:fresh_until AS bigint) >= {now}
    ON CONFLICT (identity) DO NOTHING
    RETURNING identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
              CAST(NULL AS bigint) AS expires_at, forget_at, snapshot, reason, retired_at
)
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       expires_at, forget_at, snapshot, reason, retired_at, {now}
FROM inserted
UNION ALL
SELECT {record}, {now}
FROM semel_record
WHERE identity = CAST(:identity AS bytea) AND NOT EXISTS (SELECT FROM inserted)
