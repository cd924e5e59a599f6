-- Written by `python -m tools.queries` from queries/next_effect.sql: change that file.
-- next_effect: when the next effect may be taken.
-- takes: $1 names $2 application
-- gives: one row: the earliest due_at still to come, or NULL; now
-- why: a worker with nothing to do knows how long it may rest.
SELECT (SELECT min(due_at) FROM semel_effect
        WHERE state = 'waiting'
          AND due_at > (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
          AND name = ANY (ARRAY(SELECT json_array_elements_text(CAST($1 AS json))))
          AND application = $2), (extract(epoch from clock_timestamp()) * 1000000)::bigint
