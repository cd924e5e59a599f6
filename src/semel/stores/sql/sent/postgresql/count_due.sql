-- Written by `python -m tools.queries` from queries/count_due.sql: change that file.
-- count_due: how much of each route workers should be doing.
-- takes: $1 limit
-- gives: application, route, how many, and now; application and route are NULL where the terms are
--        not on record
-- why: for those who must hear that nobody knows a route. Bounded for each kind of work.
SELECT terms.application, terms.route, count(*),
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM (
    SELECT which FROM (
        SELECT terms AS which FROM semel_record
        WHERE duty = 3 /* run */
          AND due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
          AND leased_until > (extract(epoch from clock_timestamp()) * 1000000)::bigint
        LIMIT $1
    ) AS run
    UNION ALL
    SELECT which FROM (
        SELECT terms AS which FROM semel_record
        WHERE duty = 2 /* resume */
          AND due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
          AND leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
        LIMIT $1
    ) AS resume
    UNION ALL
    SELECT which FROM (
        SELECT terms AS which FROM semel_record
        WHERE duty = 4 /* ask */
          AND due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
        LIMIT $1
    ) AS ask
) AS due
LEFT JOIN semel_terms AS terms ON terms.id = due.which
GROUP BY terms.application, terms.route
