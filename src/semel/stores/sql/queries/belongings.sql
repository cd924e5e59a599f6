-- belongings: whose the next records are, in the order of identities.
-- takes: tenant after limit
-- gives: identity, state, fence, whether it is the tenant's, and now
-- why: an index by tenant would cost every request; an erasure reads the table instead, in pages.
SELECT identity, state, fence, CASE WHEN tenant = :tenant THEN 1 ELSE 0 END, {now}
FROM semel_record
WHERE identity > :after
ORDER BY identity LIMIT :limit
