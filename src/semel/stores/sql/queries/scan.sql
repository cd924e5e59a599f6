-- scan: what a list shows of the next records.
-- takes: after limit
-- gives: glimpses and now, in the order of identities
-- why: reads the table in the order of its key, as far as the page goes and no further. Requests and
--      answers, which may be large, stay where they are.
SELECT {glimpse}, {now}
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.identity > :after
ORDER BY record.identity LIMIT :limit
