-- Written by `python -m tools.queries` from queries/due.sql: change that file.
-- due: what is due of one kind of work, longest due first.
-- takes: duty limit all application names
-- gives: cases and now
-- why: what is pending past its deadline is the abandoner's, not the worker's. What is of another
--      application, or of a route that the asker does not know, must not fill its list.
SELECT record.identity, record.state, record.fence, record.fingerprint, record.fields,
       record.on_lapse, record.created_at, record.leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       record.snapshot, record.reason, record.retired_at, record.tenant,
       record.method, record.path, record.key AS client_key, record.request, record.journal,
       record.resource, record.tries, record.due_at, terms.said, :now
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty = :duty AND record.due_at <= (SELECT :now)
  AND (record.state <> 1 /* pending */ OR record.leased_until > :now)
  AND (record.state <> 2 /* in_progress */ OR record.leased_until <= :now)
  AND (CAST(:all AS bigint) = 1
       OR (terms.application = CAST(:application AS text) AND terms.route IN (SELECT value
       FROM json_each(:names))))
ORDER BY record.due_at LIMIT :limit
