-- due: what is due of one kind of work, longest due first.
-- takes: duty limit all application names
-- gives: cases and now
-- why: what is pending past its deadline is the abandoner's, not the worker's. What is of another
--      application, or of a route that the asker does not know, must not fill its list.
SELECT {case}, {now}
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty = :duty AND record.due_at <= (SELECT {now})
  AND (record.state <> {pending} OR record.leased_until > {now})
  AND (record.state <> {in_progress} OR record.leased_until <= {now})
  AND (CAST(:all AS bigint) = 1
       OR (terms.application = CAST(:application AS text) AND terms.route {among}))
ORDER BY record.due_at LIMIT :limit
