-- accept: insert a pending record with its request unless the key is too old to start one, or read
--         what is there.
-- event: accept
-- takes: identity fence fingerprint fields tenant method path key on_lapse patience fresh_until
--        request terms
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
    SELECT CAST(:identity AS bytea), {pending}, CAST(:fence AS bytea),
           CAST(:fingerprint AS bytea), CAST(:fields AS bytea), CAST(:tenant AS text),
           NULLIF(CAST(:method AS text), ''), NULLIF(CAST(:path AS text), ''), CAST(:key AS bytea),
           CAST(:on_lapse AS smallint), moment, moment + CAST(:patience AS bigint), {duty.run}, moment,
           CAST(:patience AS bigint), moment + CAST(:patience AS bigint), CAST(:request AS bytea),
           CAST(:terms AS bigint)
    FROM (SELECT {now} AS moment) AS clock
    WHERE CAST(:fresh_until AS bigint) IS NULL OR CAST(:fresh_until AS bigint) >= {now}
    ON CONFLICT (identity) DO NOTHING
    RETURNING identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
              CAST(NULL AS bigint) AS expires_at, forget_at, snapshot, reason, retired_at
)
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       expires_at, forget_at, snapshot, reason, retired_at, {now}
FROM inserted
WHERE CASE WHEN pg_try_advisory_xact_lock(1936026981, ({now} / 100000 % 1000000)::int)
           THEN pg_notify('semel_work', '') IS NOT NULL
           ELSE true END
UNION ALL
SELECT {record}, {now}
FROM semel_record
WHERE identity = CAST(:identity AS bytea) AND NOT EXISTS (SELECT FROM inserted)
