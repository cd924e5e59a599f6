-- Written by `python -m tools.queries` from queries/browse_notables.sql: change that file.
-- browse_notables: what is worth a look, newest first.
-- takes: before limit all names anywhere route
-- gives: place, at, kind, application, route, tenant, identity, detail, times, now
-- why: for operators. There are so few of them that a list may look at all.
SELECT place, at, kind, application, route, tenant, identity, detail, times,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_notable
WHERE place < :before AND (:all = 1 OR kind IN (:names))
  AND (:anywhere = 1 OR route = :route)
ORDER BY place DESC LIMIT :limit
