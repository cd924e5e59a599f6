-- Written by `python -m tools.queries` from queries/read_terms.sql: change that file.
-- read_terms: what terms say.
-- takes: $1 id
-- gives: what they say, and now; no row when there are none
-- why: follows an agree that wrote nothing.
SELECT said, (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_terms WHERE id = $1
