-- recall: look at one record with all that is kept of it.
-- takes: identity
-- gives: the case and now, always exactly one row; identity is NULL when there is no record
-- why: as read. Requests and journals are not read on the way of a request, which has no use for them.
SELECT {case}, {now}
FROM (SELECT 1 AS one) AS here
LEFT JOIN semel_record AS record ON record.identity = :identity
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
