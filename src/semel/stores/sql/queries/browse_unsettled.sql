-- browse_unsettled: the same, where only unsettled states are asked for.
-- takes: names after limit dead
-- gives: cases and now, in the order of identities
-- why: they are few among many; their duties say so to the database, which then need not read all.
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       expires_at, forget_at, snapshot, reason, retired_at, tenant, method, path, key, request,
       journal, resource, tries, due_at, {now}
FROM semel_record
WHERE duty IN ('lease', 'resume', 'run', 'ask')
  AND state {among} AND identity > :after AND (CAST(:dead AS bigint) = 0 OR due_at IS NULL)
ORDER BY identity LIMIT :limit
