-- Written by `python -m tools.queries` from queries/sqlite/claim.sql: change that file.
-- claim: insert an in_progress record unless there is one, or the key is too old to start one.
-- event: claim
-- takes: identity fence fingerprint fields tenant method path key on_lapse lease fresh_until
--        request terms
-- gives: the new record and now; no row when nothing was inserted
-- why: runs inside the single writer's transaction, so the read that follows cannot miss a rival.
INSERT INTO semel_record
    (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
     created_at, leased_until, duty, due_at, request, terms)
SELECT :identity, 2 /* in_progress */, :fence, :fingerprint, :fields, :tenant, :method, :path, :key,
       :on_lapse, :now, :now + :lease,
       CASE :on_lapse WHEN 3 /* resume */ THEN 2 /* resume */ ELSE 1 /* lease */ END, :now
           + :lease, :request, :terms
WHERE :fresh_until IS NULL OR :fresh_until >= :now
ON CONFLICT (identity) DO NOTHING
RETURNING identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
          CASE WHEN state = 3 /* completed */ THEN due_at END,
          CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
          snapshot, reason, retired_at, :now
