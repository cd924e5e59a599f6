-- count_unsettled: how much there is that somebody must look after.
-- takes: limit
-- gives: a row for each kind there is: its duty, or 0 for a lease that is past and 9 for a dead
--        letter; how many, when the oldest was made, now
-- why: for people. Each kind is found by the index, and no more of it than the limit is read.
SELECT kind, count(*), min(made), {now}
FROM (
    SELECT kind, made FROM (
        SELECT {duty.lease} AS kind, created_at AS made FROM semel_record
        WHERE duty = {duty.lease} LIMIT :limit
    ) AS lease
    UNION ALL
    SELECT kind, made FROM (
        SELECT {duty.resume} AS kind, created_at AS made FROM semel_record
        WHERE duty = {duty.resume} LIMIT :limit
    ) AS resume
    UNION ALL
    SELECT kind, made FROM (
        SELECT {duty.run} AS kind, created_at AS made FROM semel_record
        WHERE duty = {duty.run} LIMIT :limit
    ) AS run
    UNION ALL
    SELECT kind, made FROM (
        SELECT {duty.ask} AS kind, created_at AS made FROM semel_record
        WHERE duty = {duty.ask} AND due_at IS NOT NULL LIMIT :limit
    ) AS ask
    UNION ALL
    SELECT kind, made FROM (
        SELECT 9 AS kind, created_at AS made FROM semel_record
        WHERE duty = {duty.ask} AND due_at IS NULL LIMIT :limit
    ) AS dead
    UNION ALL
    SELECT kind, made FROM (
        SELECT 0 AS kind, created_at AS made FROM semel_record
        WHERE duty = {duty.lease} AND due_at <= (SELECT {now}) AND leased_until <= {now}
        LIMIT :limit
    ) AS lapsed_lease
    UNION ALL
    SELECT kind, made FROM (
        SELECT 0 AS kind, created_at AS made FROM semel_record
        WHERE duty = {duty.resume} AND due_at <= (SELECT {now}) AND leased_until <= {now}
        LIMIT :limit
    ) AS lapsed_resume
) AS found
GROUP BY kind
