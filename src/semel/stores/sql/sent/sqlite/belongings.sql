-- Written by `python -m tools.queries` from queries/belongings.sql: change that file.
-- belongings: whose the next records are, in the order of identities.
-- takes: tenant application after limit
-- gives: identity, state, fence, whether it is the tenant's in the application, and now
-- why: an index by tenant would cost every request; an erasure reads the table instead, in pages.
SELECT record.identity, record.state, record.fence,
       CASE WHEN record.tenant = :tenant AND terms.application = :application THEN 1 ELSE 0 END,
       :now
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.identity > :after
ORDER BY record.identity LIMIT :limit
