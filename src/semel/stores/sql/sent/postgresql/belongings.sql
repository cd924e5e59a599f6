-- Written by `python -m tools.queries` from queries/belongings.sql: change that file.
-- belongings: whose the next records are, in the order of identities.
-- takes: $1 tenant $2 application $3 after $4 limit
-- gives: identity, state, fence, whether it is the tenant's in the application, and now
-- why: an index by tenant would cost every request; an erasure reads the table instead, in pages.
SELECT record.identity, record.state, record.fence,
       CASE WHEN record.tenant = $1 AND terms.application = $2 THEN 1 ELSE 0 END,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.identity > $3
ORDER BY record.identity LIMIT $4
