-- browse_unsettled: the same, where only unsettled states are asked for.
-- takes: names after limit dead
-- gives: cases and now, in the order of identities
-- why: they are few among many; their duties say so to the database, which then need not read all.
SELECT record.identity, record.state, record.fence, record.fingerprint, record.fields,
       record.on_lapse, record.created_at, record.leased_until, {expires_at},
       {forget_at}, record.snapshot, record.reason, record.retired_at, record.tenant,
       record.method, record.path, record.key, record.request, record.journal, record.resource,
       record.tries, record.due_at, terms.said, {now}
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty IN ({duty.lease}, {duty.resume}, {duty.run}, {duty.ask})
  AND record.state {in_states} AND record.identity > :after
  AND (CAST(:dead AS bigint) = 0 OR record.due_at IS NULL)
ORDER BY record.identity LIMIT :limit
