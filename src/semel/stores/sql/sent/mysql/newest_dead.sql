-- Written by `python -m tools.queries` from queries/newest_dead.sql: change that file.
-- newest_dead: records whose outcome nobody will ask about again.
-- takes: identity limit
-- gives: glimpses and now, by identity, the last first
-- why: they have no time to stand by. PostgreSQL and SQLite have an index of their identities, and
--      MySQL's index of what is due ends with the identity: nothing is sorted.
SELECT record.identity, record.state, record.on_lapse, record.tenant, record.method, record.path,
       record.`key` AS client_key, record.created_at, record.leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       record.due_at, record.tries, record.reason, length(record.snapshot) AS size,
       substr(record.snapshot, 1, 17) AS start, record.resource, terms.said,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record AS record FORCE INDEX (semel_record_due)
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty = 4 /* ask */ AND record.due_at IS NULL AND record.identity < :identity
ORDER BY record.identity DESC LIMIT :limit
