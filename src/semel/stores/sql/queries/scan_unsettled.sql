-- scan_unsettled: the same, where only unsettled states are asked for.
-- takes: names after limit
-- gives: glimpses and now, in the order of identities
-- why: they are few among many; their duties say so to the database, which then need not read all.
SELECT identity, state, on_lapse, tenant, method, path, key, created_at, leased_until, expires_at,
       forget_at, due_at, tries, reason, length(snapshot) AS size, {now}
FROM semel_record
WHERE duty IN ('lease', 'resume', 'run', 'ask') AND state {among} AND identity > :after
ORDER BY identity LIMIT :limit
