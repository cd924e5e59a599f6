-- Written by `python -m tools.queries` from queries/browse_notables.sql: change that file.
-- browse_notables: what is worth a look, newest first.
-- takes: before limit all names anywhere route
-- gives: place, at, kind, application, route, tenant, identity, detail, times, now
-- why: for operators. There are so few of them that a list may look at all.
SELECT place, at, kind, application, route, tenant, identity, detail, times, :now
FROM semel_notable
WHERE place < :before AND (CAST(:all AS integer) = 1 OR kind IN (SELECT value
FROM json_each(:names)))
  AND (CAST(:anywhere AS integer) = 1 OR route = :route)
ORDER BY place DESC LIMIT :limit
