-- Written by `python -m tools.queries` from queries/postgresql/schema_exists.sql: change that file.
-- schema_exists: whether semel ever made its tables here (in the search path).
-- takes:
-- gives: one row, one column: 1 or 0
-- why: asking for the version of a schema that is not there would be an error, and an error would
--      spoil the transaction.
SELECT CASE WHEN to_regclass('semel_schema') IS NULL THEN 0 ELSE 1 END
