-- look: read, for the connections that only look.
-- takes: identity
-- gives: the record; no row when there is none
-- why: SQLite's clock is the store's own, so unlike read it needs no row to carry it.
SELECT {record}
FROM semel_record WHERE identity = :identity
