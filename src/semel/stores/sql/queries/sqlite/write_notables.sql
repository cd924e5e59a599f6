-- write_notables: put a batch of notables on record.
-- takes: notables identities keep
-- gives: now for each
-- why: one statement for all. notables is a JSON array in the order of time; of each one that has an
--      identity, which says where in identities that begins.
INSERT INTO semel_notable
    (at, forget_at, kind, application, route, tenant, identity, detail, times)
SELECT {now}, {now} + :keep, json_extract(value, '$.kind'),
       json_extract(value, '$.application'), json_extract(value, '$.route'),
       json_extract(value, '$.tenant'), substr(:identities, json_extract(value, '$.which'), 32),
       json_extract(value, '$.detail'), json_extract(value, '$.times')
FROM json_each(:notables)
WHERE 1 = 1
ORDER BY key
RETURNING {now}
