-- claim_many: claim, for many keys at once.
-- event: claim
-- takes: identity fence fingerprint fields tenant method path key on_lapse lease fresh_until
--        request terms
-- gives: the new and the existing records and now, in any order. No row where claim gives none
-- why: one round trip and one commit, and nothing is written or locked where a record exists: a look,
--      which takes no lock, notes those as bits. Each parameter is a list, one value per row, in the
--      order of identities, which is the order of the locks; lease is a JSON array, and gives the
--      rows their numbers. No identity may be in it twice.
SELECT BIT_OR(1 << (FIELD(identity, :identity) - 1)) INTO @semel_found
FROM semel_record WHERE identity IN (:identity);
INSERT INTO semel_record
    (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
     created_at, leased_until, duty, due_at, request, terms)
SELECT ELT(n, :identity), {in_progress}, ELT(n, :fence), ELT(n, :fingerprint), ELT(n, :fields),
       ELT(n, :tenant), NULLIF(ELT(n, :method), _utf8mb4 x''), NULLIF(ELT(n, :path), _utf8mb4 x''), ELT(n, :key),
       CAST(ELT(n, :on_lapse) AS SIGNED), {now}, {now} + lease,
       CASE CAST(ELT(n, :on_lapse) AS SIGNED)
       WHEN {lapse.resume} THEN {duty.resume} ELSE {duty.lease} END,
       {now} + lease, ELT(n, :request), CAST(ELT(n, :terms) AS SIGNED)
FROM JSON_TABLE(:lease, '$[*]' COLUMNS (n FOR ORDINALITY, lease BIGINT PATH '$')) AS given
WHERE ((@semel_found >> (n - 1)) & 1) = 0
  AND (ELT(n, :fresh_until) IS NULL OR CAST(ELT(n, :fresh_until) AS SIGNED) >= {now});
SELECT {record}, {now}
FROM semel_record
WHERE identity IN (:identity)
