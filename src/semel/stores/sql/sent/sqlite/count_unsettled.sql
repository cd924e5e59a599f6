-- Written by `python -m tools.queries` from queries/count_unsettled.sql: change that file.
-- count_unsettled: how much there is that somebody must look after.
-- takes: limit
-- gives: a row for each kind there is: its duty, or 0 for a lease that is past and 9 for a dead
--        letter; how many, when the oldest was made, now
-- why: for people. Each kind is found by the index, and no more of it than the limit is read.
SELECT kind, count(*), min(made), :now
FROM (
    SELECT kind, made FROM (
        SELECT 1 /* lease */ AS kind, created_at AS made FROM semel_record
        WHERE duty = 1 /* lease */ LIMIT :limit
    ) AS lease
    UNION ALL
    SELECT kind, made FROM (
        SELECT 2 /* resume */ AS kind, created_at AS made FROM semel_record
        WHERE duty = 2 /* resume */ LIMIT :limit
    ) AS resume
    UNION ALL
    SELECT kind, made FROM (
        SELECT 3 /* run */ AS kind, created_at AS made FROM semel_record
        WHERE duty = 3 /* run */ LIMIT :limit
    ) AS run
    UNION ALL
    SELECT kind, made FROM (
        SELECT 4 /* ask */ AS kind, created_at AS made FROM semel_record
        WHERE duty = 4 /* ask */ AND due_at IS NOT NULL LIMIT :limit
    ) AS ask
    UNION ALL
    SELECT kind, made FROM (
        SELECT 9 AS kind, created_at AS made FROM semel_record
        WHERE duty = 4 /* ask */ AND due_at IS NULL LIMIT :limit
    ) AS dead
    UNION ALL
    SELECT kind, made FROM (
        SELECT 0 AS kind, created_at AS made FROM semel_record
        WHERE duty = 1 /* lease */ AND due_at <= (SELECT :now) AND leased_until <= :now
        LIMIT :limit
    ) AS lapsed_lease
    UNION ALL
    SELECT kind, made FROM (
        SELECT 0 AS kind, created_at AS made FROM semel_record
        WHERE duty = 2 /* resume */ AND due_at <= (SELECT :now) AND leased_until <= :now
        LIMIT :limit
    ) AS lapsed_resume
) AS found
GROUP BY kind
