-- browse: records in some states, for an operator.
-- takes: names after limit dead
-- gives: cases and now, in the order of identities
-- why: reads the table in the order of its key. What is unsettled is found by browse_unsettled.
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       expires_at, forget_at, snapshot, reason, retired_at, tenant, method, path, key, request,
       journal, resource, tries, due_at, {now}
FROM semel_record
WHERE state {among} AND identity > :after AND (CAST(:dead AS bigint) = 0 OR due_at IS NULL)
ORDER BY identity LIMIT :limit
