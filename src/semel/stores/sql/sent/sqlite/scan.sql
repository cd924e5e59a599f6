-- Written by `python -m tools.queries` from queries/scan.sql: change that file.
-- scan: what a list shows of the next records.
-- takes: after limit
-- gives: glimpses and now, in the order of identities
-- why: reads the table in the order of its key, as far as the page goes and no further. Requests and
--      answers, which may be large, stay where they are.
SELECT record.identity, record.state, record.on_lapse, record.tenant, record.method, record.path,
       record.key AS client_key, record.created_at, record.leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       record.due_at, record.tries, record.reason, length(record.snapshot) AS size,
       substr(record.snapshot, 1, 17) AS start, record.resource, terms.said, :now
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.identity > :after
ORDER BY record.identity LIMIT :limit
