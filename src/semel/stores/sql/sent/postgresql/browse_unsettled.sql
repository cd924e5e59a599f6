-- Written by `python -m tools.queries` from queries/browse_unsettled.sql: change that file.
-- browse_unsettled: the same, where only unsettled states are asked for.
-- takes: $1 names $2 after $3 limit $4 dead
-- gives: cases and now, in the order of identities
-- why: they are few among many; their duties say so to the database, which then need not read all.
SELECT record.identity, record.state, record.fence, record.fingerprint, record.fields,
       record.on_lapse, record.created_at, record.leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       record.snapshot, record.reason, record.retired_at, record.tenant,
       record.method, record.path, record.key AS client_key, record.request, record.journal,
       record.resource, record.tries, record.due_at, terms.said,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty IN (1 /* lease */, 2 /* resume */, 3 /* run */, 4 /* ask */)
  AND record.state = ANY (ARRAY(SELECT json_array_elements_text(CAST($1 AS json))::smallint))
  AND record.identity > $2
  AND (CAST($4 AS bigint) = 0 OR record.due_at IS NULL)
ORDER BY record.identity LIMIT $3
