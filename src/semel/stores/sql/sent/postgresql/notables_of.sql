-- Written by `python -m tools.queries` from queries/notables_of.sql: change that file.
-- notables_of: what is worth a look of one key, newest first.
-- takes: $1 identity $2 before $3 limit $4 all $5 names $6 anywhere $7 route
-- gives: place, at, kind, application, route, tenant, identity, detail, times, now
-- why: by the index of identities.
SELECT place, at, kind, application, route, tenant, identity, detail, times,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_notable
WHERE identity = $1 AND place < $2
  AND (CAST($4 AS integer) = 1
       OR kind = ANY (ARRAY(SELECT json_array_elements_text(CAST($5 AS json)))))
  AND (CAST($6 AS integer) = 1 OR route = $7)
ORDER BY place DESC LIMIT $3
