-- Written by `python -m tools.queries` from queries/count_due.sql: change that file.
-- count_due: how much of each route workers should be doing.
-- takes: limit
-- gives: application, route, how many, and now; application and route are NULL where the terms are
--        not on record
-- why: for those who must hear that nobody knows a route. Bounded for each kind of work.
SELECT terms.application, terms.route, count(*),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM (
    SELECT which FROM (
        SELECT terms AS which FROM semel_record
        WHERE duty = 3 /* run */
          AND due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
          AND leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        LIMIT :limit
    ) AS run
    UNION ALL
    SELECT which FROM (
        SELECT terms AS which FROM semel_record
        WHERE duty = 2 /* resume */
          AND due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
          AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        LIMIT :limit
    ) AS resume
    UNION ALL
    SELECT which FROM (
        SELECT terms AS which FROM semel_record
        WHERE duty = 4 /* ask */
          AND due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
        LIMIT :limit
    ) AS ask
) AS due
LEFT JOIN semel_terms AS terms ON terms.id = due.which
GROUP BY terms.application, terms.route
