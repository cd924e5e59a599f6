-- due: what is due of one kind of work, longest due first.
-- takes: duty limit
-- gives: cases and now
-- why: what is pending past its deadline is the abandoner's, not the worker's.
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       expires_at, forget_at, snapshot, reason, retired_at, tenant, method, path, key, request,
       journal, resource, tries, due_at, {now}
FROM semel_record
WHERE duty = :duty AND due_at <= (SELECT {now})
  AND (state <> 'pending' OR leased_until > {now})
  AND (state <> 'in_progress' OR leased_until <= {now})
ORDER BY due_at LIMIT :limit
