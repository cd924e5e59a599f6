-- Written by `python -m tools.queries` from queries/mysql/write_notables.sql: change that file.
-- write_notables: put a batch of notables on record.
-- takes: notables identities keep
-- gives: now for each
-- why: one statement for all. notables is a JSON array in the order of time; of each one that has an
--      identity, which says where in identities that begins.
INSERT INTO semel_notable
    (at, forget_at, kind, application, route, tenant, identity, detail, times)
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :keep, kind, application,
       route, tenant,
       SUBSTRING(:identities, which, 32), detail, times
FROM JSON_TABLE(:notables, '$[*]' COLUMNS (
    n FOR ORDINALITY,
    kind TEXT CHARACTER SET utf8mb4 PATH '$.kind',
    application TEXT CHARACTER SET utf8mb4 PATH '$.application',
    route TEXT CHARACTER SET utf8mb4 PATH '$.route',
    tenant TEXT CHARACTER SET utf8mb4 PATH '$.tenant',
    which INT PATH '$.which',
    detail TEXT CHARACTER SET utf8mb4 PATH '$.detail',
    times BIGINT PATH '$.times')) AS given
ORDER BY n;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM JSON_TABLE(:notables,
       '$[*]' COLUMNS (n FOR ORDINALITY)) AS given
