-- scan_unsettled: the same, where only unsettled states are asked for.
-- takes: names after limit
-- gives: glimpses and now, in the order of identities
-- why: they are few among many; their duties say so to the database, which then need not read all.
SELECT {glimpse}, {now}
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty IN ({duty.lease}, {duty.resume}, {duty.run}, {duty.ask})
  AND record.state {in_states} AND record.identity > :after
ORDER BY record.identity LIMIT :limit
