-- count_due: how much of each route workers should be doing.
-- takes: limit
-- gives: application, route, how many, and now; application and route are NULL where the terms are
--        not on record
-- why: for those who must hear that nobody knows a route. Bounded for each kind of work.
SELECT terms.application, terms.route, count(*), {now}
FROM (
    SELECT which FROM (
        SELECT terms AS which FROM semel_record
        WHERE duty = {duty.run} AND due_at <= (SELECT {now}) AND leased_until > {now}
        LIMIT :limit
    ) AS run
    UNION ALL
    SELECT which FROM (
        SELECT terms AS which FROM semel_record
        WHERE duty = {duty.resume} AND due_at <= (SELECT {now}) AND leased_until <= {now}
        LIMIT :limit
    ) AS resume
    UNION ALL
    SELECT which FROM (
        SELECT terms AS which FROM semel_record
        WHERE duty = {duty.ask} AND due_at <= (SELECT {now})
        LIMIT :limit
    ) AS ask
) AS due
LEFT JOIN semel_terms AS terms ON terms.id = due.which
GROUP BY terms.application, terms.route
