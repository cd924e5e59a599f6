-- notables_of: what is worth a look of one key, newest first.
-- takes: identity before limit all names anywhere route
-- gives: place, at, kind, application, route, tenant, identity, detail, times, now
-- why: by the index of identities.
SELECT place, at, kind, application, route, tenant, identity, detail, times, {now}
FROM semel_notable
WHERE identity = :identity AND place < :before
  AND (CAST(:all AS integer) = 1 OR kind {among})
  AND (CAST(:anywhere AS integer) = 1 OR route = :route)
ORDER BY place DESC LIMIT :limit
