-- Written by `python -m tools.queries` from queries/census.sql: change that file.
-- census: how many keys each tenant has among the next records.
-- takes: $1 after $2 limit
-- gives: a row for each tenant: its name, how many are not expired, how many there are, the last
--        identity of the page, now
-- why: reads the table in the order of its key, as far as the page goes and no further, and sends
--      one row for each tenant.
WITH page AS (
    SELECT identity, tenant, state FROM semel_record
    WHERE identity > $1
    ORDER BY identity LIMIT $2
)
SELECT tenant, count(CASE WHEN state <> 6 /* expired */ THEN 1 END), count(*),
       (SELECT identity FROM page ORDER BY identity DESC LIMIT 1),
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM page GROUP BY tenant
