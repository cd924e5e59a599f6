-- Written by `python -m tools.queries` from queries/browse_notables.sql: change that file.
-- browse_notables: what is worth a look, newest first.
-- takes: $1 before $2 limit $3 all $4 names $5 anywhere $6 route
-- gives: place, at, kind, application, route, tenant, identity, detail, times, now
-- why: for operators. There are so few of them that a list may look at all.
SELECT place, at, kind, application, route, tenant, identity, detail, times,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_notable
WHERE place < $1 AND (CAST($3 AS integer) = 1
                      OR kind = ANY (ARRAY(SELECT json_array_elements_text(CAST($4 AS json)))))
  AND (CAST($5 AS integer) = 1 OR route = $6)
ORDER BY place DESC LIMIT $2
