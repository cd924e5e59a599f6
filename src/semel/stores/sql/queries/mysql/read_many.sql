-- read_many: read, for many identities at once.
-- takes: identity
-- gives: the records that are there and now, in any order
-- why: as claim_many. What it does not give is read alone.
SELECT {record}, {now}
FROM semel_record
WHERE identity IN (:identity)
