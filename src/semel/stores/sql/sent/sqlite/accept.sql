-- Written by `python -m tools.queries` from queries/sqlite/accept.sql: change that file.
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
SELECT :identity, 1 /* pending */, :fence, :fingerprint, :fields, :tenant, :method, :path, :key,
       :on_lapse, :now, :now + :patience, 3 /* run */, :now, :patience, :now + :patience, :request,
       :terms
WHERE :fresh_until IS NULL OR :fresh_until >= :now
ON CONFLICT (identity) DO NOTHING
RETURNING identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
          CASE WHEN state = 3 /* completed */ THEN due_at END,
          CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
          snapshot, reason, retired_at, :now
