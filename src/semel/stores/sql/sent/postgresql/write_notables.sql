-- Written by `python -m tools.queries` from queries/postgresql/write_notables.sql: change that file.
-- write_notables: put a batch of notables on record.
-- takes: $1 notables $2 identities $3 keep
-- gives: now for each
-- why: one statement for all. notables is a JSON array in the order of time; of each one that has an
--      identity, which says where in identities that begins.
INSERT INTO semel_notable
    (at, forget_at, kind, application, route, tenant, identity, detail, times)
SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint + CAST($3 AS bigint),
       one->>'kind', one->>'application', one->>'route',
       one->>'tenant', substr(CAST($2 AS bytea), CAST(one->>'which' AS integer), 32),
       one->>'detail', CAST(one->>'times' AS bigint)
FROM json_array_elements(CAST($1 AS json)) WITH ORDINALITY AS given (one, n)
ORDER BY n
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
