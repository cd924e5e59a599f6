-- scan: what a list shows of the next records.
-- takes: after limit
-- gives: glimpses and now, in the order of identities
-- why: reads the table in the order of its key, as far as the page goes and no further. Requests and
--      answers, which may be large, stay where they are.
SELECT record.identity, record.state, record.on_lapse, record.tenant, record.method, record.path,
       record.key, record.created_at, record.leased_until, {expires_at}, {forget_at},
       record.due_at, record.tries, record.reason, length(record.snapshot) AS size, terms.said, {now}
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.identity > :after
ORDER BY record.identity LIMIT :limit
