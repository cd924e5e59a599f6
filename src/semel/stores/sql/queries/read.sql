-- read: look at one record, change nothing.
-- takes: identity
-- gives: the record and now, always exactly one row; identity is NULL when there is no record
-- why: an answer needs the store's clock even when nothing is there, hence the outer join.
SELECT {record}, {now}
FROM (SELECT 1 AS one) AS here
LEFT JOIN semel_record AS record ON record.identity = :identity
