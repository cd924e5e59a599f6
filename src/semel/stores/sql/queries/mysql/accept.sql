-- accept: insert a pending record with its request unless the key is too old to start one, or read
--         what is there.
-- event: accept
-- takes: identity fence fingerprint fields tenant method path key on_lapse patience fresh_until
--        request terms
-- gives: the new or the existing record and now; no row when a rival inserted it in between, or when
--        nothing is there and the key is too old
-- why: as claim.
SELECT MAX(1) INTO @semel_found FROM semel_record WHERE identity = :identity;
INSERT INTO semel_record
    (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
     created_at, leased_until, duty, due_at, patience, abandon_at, request, terms)
SELECT :identity, {pending}, :fence, :fingerprint, :fields, :tenant, NULLIF(:method, _utf8mb4 x''),
       NULLIF(:path, _utf8mb4 x''), :key, :on_lapse, {now}, {now} + :patience, {duty.run}, {now}, :patience, {now} + :patience, :request, :terms
FROM DUAL
WHERE @semel_found IS NULL AND (:fresh_until IS NULL OR :fresh_until >= {now});
SELECT {record}, {now}
FROM semel_record WHERE identity = :identity
