-- Written by `python -m tools.queries` from queries/next_due.sql: change that file.
-- next_due: when the next record becomes somebody's work.
-- takes: $1 duty $2 all $3 application $4 names
-- gives: one row: the earliest due_at still to come, or NULL; now
-- why: a worker with nothing to do knows how long it may rest.
SELECT (SELECT min(record.due_at)
        FROM semel_record AS record LEFT JOIN semel_terms AS terms ON terms.id = record.terms
        WHERE record.duty = $1
          AND record.due_at > (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
          AND (CAST($2 AS bigint) = 1
               OR (terms.application = CAST($3 AS text)
                   AND terms.route = ANY (ARRAY(SELECT json_array_elements_text(CAST($4 AS json))))))),
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
