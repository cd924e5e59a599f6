-- scan: what a list shows of the next records.
-- takes: after limit
-- gives: glimpses and now, in the order of identities
-- why: reads the table in the order of its key, as far as the page goes and no further. Requests and
--      answers, which may be large, stay where they are.
SELECT identity, state, on_lapse, tenant, method, path, key, created_at, leased_until, expires_at,
       forget_at, due_at, tries, reason, length(snapshot) AS size, {now}
FROM semel_record
WHERE identity > :after
ORDER BY identity LIMIT :limit
