-- Written by `python -m tools.queries` from queries/sample.sql: change that file.
-- sample: how many records of each route are in each state, among the next ones.
-- takes: $1 after $2 limit $3 since
-- gives: application, route, state, how many, how many made since then, when the oldest and when the
--        newest was made, the last identity of the page, now
-- why: reads the table in the order of its key, as far as the page goes and no further, and sends
--      one row for each group.
WITH page AS (
    SELECT identity, terms, state, created_at FROM semel_record
    WHERE identity > $1
    ORDER BY identity LIMIT $2
)
SELECT terms.application, terms.route, counted.state, counted.number, counted.recent,
       counted.oldest, counted.newest, (SELECT identity FROM page ORDER BY identity DESC LIMIT 1),
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM (
    SELECT terms AS agreed, state, count(*) AS number,
           count(CASE WHEN created_at >= $3 THEN 1 END) AS recent,
           min(created_at) AS oldest, max(created_at) AS newest
    FROM page GROUP BY terms, state
) AS counted
LEFT JOIN semel_terms AS terms ON terms.id = counted.agreed
