-- accept: insert a pending record with its request unless there is one, or the key is too old to
--         start one.
-- event: accept
-- takes: identity fence fingerprint fields tenant method path key on_lapse patience fresh_until
--        request terms
-- gives: the new record and now; no row when nothing was inserted
-- why: as claim.
INSERT INTO semel_record
    (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
     created_at, leased_until, duty, due_at, patience, abandon_at, request, terms)
SELECT :identity, {pending}, :fence, :fingerprint, :fields, :tenant, :method, :path, :key,
       :on_lapse, {now}, {now} + :patience, {duty.run}, {now}, :patience, {now} + :patience, :request, :terms
WHERE :fresh_until IS NULL OR :fresh_until >= {now}
ON CONFLICT (identity) DO NOTHING
RETURNING identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
          {expires_at}, {forget_at}, snapshot, reason, retired_at, {now}
