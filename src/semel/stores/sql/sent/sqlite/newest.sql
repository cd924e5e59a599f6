-- Written by `python -m tools.queries` from queries/newest.sql: change that file.
-- newest: records of one duty, latest due first.
-- takes: duty due identity limit
-- gives: glimpses and now
-- why: reads the index of what is due backwards, as far as the page goes and no further. Records of
--      the same time stand by identity, and a page may begin among them.
SELECT record.identity, record.state, record.on_lapse, record.tenant, record.method, record.path,
       record.key AS client_key, record.created_at, record.leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       record.due_at, record.tries, record.reason, length(record.snapshot) AS size,
       substr(record.snapshot, 1, 17) AS start, record.resource, terms.said, :now
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty = :duty AND record.due_at <= :due
  AND (record.due_at < :due OR record.identity < :identity)
ORDER BY record.due_at DESC, record.identity DESC LIMIT :limit
