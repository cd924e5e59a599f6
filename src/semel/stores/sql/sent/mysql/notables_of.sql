-- Written by `python -m tools.queries` from queries/notables_of.sql: change that file.
-- notables_of: what is worth a look of one key, newest first.
-- takes: identity before limit all names anywhere route
-- gives: place, at, kind, application, route, tenant, identity, detail, times, now
-- why: by the index of identities.
SELECT place, at, kind, application, route, tenant, identity, detail, times,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_notable
WHERE identity = :identity AND place < :before
  AND (:all = 1 OR kind IN (:names))
  AND (:anywhere = 1 OR route = :route)
ORDER BY place DESC LIMIT :limit
