-- Written by `python -m tools.queries` from queries/next_due.sql: change that file.
-- next_due: when the next record becomes somebody's work.
-- takes: duty all application names
-- gives: one row: the earliest due_at still to come, or NULL; now
-- why: a worker with nothing to do knows how long it may rest.
SELECT (SELECT min(record.due_at)
        FROM semel_record AS record LEFT JOIN semel_terms AS terms ON terms.id = record.terms
        WHERE record.duty = :duty AND record.due_at > (SELECT :now)
          AND (CAST(:all AS bigint) = 1
               OR (terms.application = CAST(:application AS text) AND terms.route IN (SELECT value
               FROM json_each(:names))))),
       :now
