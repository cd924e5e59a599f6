-- Written by `python -m tools.queries` from queries/recall.sql: change that file.
-- recall: look at one record with all that is kept of it.
-- takes: identity
-- gives: the case and now, always exactly one row; identity is NULL when there is no record
-- why: as read. Requests and journals are not read on the way of a request, which has no use for them.
SELECT record.identity, record.state, record.fence, record.fingerprint, record.fields,
       record.on_lapse, record.created_at, record.leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       record.snapshot, record.reason, record.retired_at, record.tenant,
       record.method, record.path, record.`key` AS client_key, record.request, record.journal,
       record.resource, record.tries, record.due_at, terms.said,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM (SELECT 1 AS one) AS here
LEFT JOIN semel_record AS record ON record.identity = :identity
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
