-- browse: records in some states, for an operator.
-- takes: names after limit dead
-- gives: cases and now, in the order of identities
-- why: reads the table in the order of its key. What is unsettled is found by browse_unsettled.
SELECT {case}, {now}
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.state {in_states} AND record.identity > :after
  AND (CAST(:dead AS bigint) = 0 OR record.due_at IS NULL)
ORDER BY record.identity LIMIT :limit
