-- Written by `python -m tools.queries` from queries/read_terms.sql: change that file.
-- read_terms: what terms say.
-- takes: id
-- gives: what they say, and now; no row when there are none
-- why: follows an agree that wrote nothing.
SELECT said, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_terms WHERE id = :id
