-- find: one call, by where its key was used.
-- takes: method url key
-- gives: the row, if there is one
-- why: servers may count a key per route.
SELECT * FROM call WHERE method = :method AND url = :url AND key = :key
