-- Written by `python -m tools.queries` from queries/browse.sql: change that file.
-- browse: records in some states, for an operator.
-- takes: names after limit dead
-- gives: cases and now, in the order of identities
-- why: reads the table in the order of its key. What is unsettled is found by browse_unsettled.
SELECT record.identity, record.state, record.fence, record.fingerprint, record.fields,
       record.on_lapse, record.created_at, record.leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       record.snapshot, record.reason, record.retired_at, record.tenant,
       record.method, record.path, record.`key` AS client_key, record.request, record.journal,
       record.resource, record.tries, record.due_at, terms.said,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.state IN (:names) AND record.identity > :after
  AND (:dead = 0 OR record.due_at IS NULL)
ORDER BY record.identity LIMIT :limit
