-- browse_unsettled: the same, where only unsettled states are asked for.
-- takes: names after limit dead
-- gives: cases and now, in the order of identities
-- why: they are few among many; their duties say so to the database, which then need not read all.
SELECT {case}, {now}
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty IN ({duty.lease}, {duty.resume}, {duty.run}, {duty.ask})
  AND record.state {in_states} AND record.identity > :after
  AND (CAST(:dead AS bigint) = 0 OR record.due_at IS NULL)
ORDER BY record.identity LIMIT :limit
