-- list_terms: what all terms say.
-- takes: limit
-- gives: what they say, and now
-- why: for lists in order of time, which need to know how long records are kept. They are few.
SELECT said, {now} FROM semel_terms LIMIT :limit
