-- census: how many keys each tenant has among the next records.
-- takes: after limit
-- gives: a row for each tenant: its name, how many are not expired, how many there are, the last
--        identity of the page, now
-- why: reads the table in the order of its key, as far as the page goes and no further, and sends
--      one row for each tenant.
WITH page AS (
    SELECT identity, tenant, state FROM semel_record
    WHERE identity > :after
    ORDER BY identity LIMIT :limit
)
SELECT tenant, count(CASE WHEN state <> {expired} THEN 1 END), count(*),
       (SELECT identity FROM page ORDER BY identity DESC LIMIT 1), {now}
FROM page GROUP BY tenant
