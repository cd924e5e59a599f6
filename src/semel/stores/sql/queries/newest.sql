-- newest: records of one duty, latest due first.
-- takes: duty due identity limit
-- gives: glimpses and now
-- why: reads the index of what is due backwards, as far as the page goes and no further. Records of
--      the same time stand by identity, and a page may begin among them.
SELECT {glimpse}, {now}
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty = :duty AND record.due_at <= :due
  AND (record.due_at < :due OR record.identity < :identity)
ORDER BY record.due_at DESC, record.identity DESC LIMIT :limit
