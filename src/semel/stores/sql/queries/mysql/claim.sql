-- claim: insert an in_progress record unless the key is too old to start one, or read what is there.
-- event: claim
-- takes: identity fence fingerprint fields tenant method path key on_lapse lease fresh_until
--        request terms
-- gives: the new or the existing record and now; no row when a rival inserted it in between, or when
--        nothing is there and the key is too old
-- why: one round trip, and nothing is written or locked when the record exists: the insert
--      is made only if a look, which takes no lock, found nothing. Not INSERT IGNORE, which would
--      also ignore what is wrong with the row; and not a look within SET or INSERT, which locks.
--      A bare '' has the collation of the session, which may be a caller's, and the parameter that
--      of the server: those two cannot be compared.
SELECT MAX(1) INTO @semel_found FROM semel_record WHERE identity = :identity;
INSERT INTO semel_record
    (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
     created_at, leased_until, duty, due_at, request, terms)
SELECT :identity, {in_progress}, :fence, :fingerprint, :fields, :tenant, NULLIF(:method, _utf8mb4 x''),
       NULLIF(:path, _utf8mb4 x''), :key, :on_lapse, {now}, {now} + :lease,
       CASE :on_lapse WHEN {lapse.resume} THEN {duty.resume} ELSE {duty.lease} END, {now} + :lease, :request, :terms
FROM DUAL
WHERE @semel_found IS NULL AND (:fresh_until IS NULL OR :fresh_until >= {now});
SELECT {record}, {now}
FROM semel_record WHERE identity = :identity
