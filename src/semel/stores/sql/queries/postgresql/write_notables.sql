-- write_notables: put a batch of notables on record.
-- takes: notables identities keep
-- gives: now for each
-- why: one statement for all. notables is a JSON array in the order of time; of each one that has an
--      identity, which says where in identities that begins.
INSERT INTO semel_notable
    (at, forget_at, kind, application, route, tenant, identity, detail, times)
SELECT {now}, {now} + CAST(:keep AS bigint), one->>'kind', one->>'application', one->>'route',
       one->>'tenant', substr(CAST(:identities AS bytea), CAST(one->>'which' AS integer), 32),
       one->>'detail', CAST(one->>'times' AS bigint)
FROM json_array_elements(CAST(:notables AS json)) WITH ORDINALITY AS given (one, n)
ORDER BY n
RETURNING {now}
