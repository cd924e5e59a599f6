-- claim: insert an in_progress record unless there is one, or the key is too old to start one.
-- event: claim
-- takes: identity fence fingerprint fields tenant method path key on_lapse lease fresh_until
--        request terms
-- gives: the new record and now; no row when nothing was inserted
-- why: runs inside the single writer's transaction, so the read that follows cannot miss a rival.
INSERT INTO semel_record
    (identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
     created_at, leased_until, duty, due_at, request, terms)
SELECT :identity, {in_progress}, :fence, :fingerprint, :fields, :tenant, :method, :path, :key,
       :on_lapse, {now}, {now} + :lease,
       CASE :on_lapse WHEN {lapse.resume} THEN {duty.resume} ELSE {duty.lease} END, {now} + :lease, :request, :terms
WHERE :fresh_until IS NULL OR :fresh_until >= {now}
ON CONFLICT (identity) DO NOTHING
RETURNING identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
          {expires_at}, {forget_at}, snapshot, reason, retired_at, {now}
