-- Written by `python -m tools.queries` from queries/unlike.sql: change that file.
-- unlike: what does not begin in a certain way in the next records, in the order of identities.
-- takes: $1 prefix $2 size $3 after $4 limit
-- gives: identity, fence, reason, request, journal, snapshot, and now; NULL where it begins so
-- why: what is encrypted begins with its key's id; what has the current one need not travel.
SELECT identity, fence, reason,
       CASE WHEN substr(request, 1, CAST($2 AS integer)) <> $1 THEN request END,
       CASE WHEN substr(journal, 1, CAST($2 AS integer)) <> $1 THEN journal END,
       CASE WHEN substr(snapshot, 1, CAST($2 AS integer)) <> $1 THEN snapshot END,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_record
WHERE identity > $3
ORDER BY identity LIMIT $4
