-- Written by `python -m tools.queries` from queries/due.sql: change that file.
-- due: what is due of one kind of work, longest due first.
-- takes: $1 duty $2 limit $3 all $4 application $5 names
-- gives: cases and now
-- why: what is pending past its deadline is the abandoner's, not the worker's. What is of another
--      application, or of a route that the asker does not know, must not fill its list.
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
WHERE record.duty = $1
  AND record.due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
  AND (record.state <> 1 /* pending */
       OR record.leased_until > (extract(epoch from clock_timestamp()) * 1000000)::bigint)
  AND (record.state <> 2 /* in_progress */
       OR record.leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint)
  AND (CAST($3 AS bigint) = 1
       OR (terms.application = CAST($4 AS text)
           AND terms.route = ANY (ARRAY(SELECT json_array_elements_text(CAST($5 AS json))))))
ORDER BY record.due_at LIMIT $2
