-- Written by `python -m tools.queries` from queries/unlike.sql: change that file.
-- unlike: what does not begin in a certain way in the next records, in the order of identities.
-- takes: prefix size after limit
-- gives: identity, fence, reason, request, journal, snapshot, and now; NULL where it begins so
-- why: what is encrypted begins with its key's id; what has the current one need not travel.
SELECT identity, fence, reason,
       CASE WHEN substr(request, 1, CAST(:size AS integer)) <> :prefix THEN request END,
       CASE WHEN substr(journal, 1, CAST(:size AS integer)) <> :prefix THEN journal END,
       CASE WHEN substr(snapshot, 1, CAST(:size AS integer)) <> :prefix THEN snapshot END,
       :now
FROM semel_record
WHERE identity > :after
ORDER BY identity LIMIT :limit
