-- Written by `python -m tools.queries` from queries/sqlite/schema_exists.sql: change that file.
-- schema_exists: whether semel ever made its tables here.
-- takes:
-- gives: one row, one column: 1 or 0
-- why: asking for the version of a schema that is not there would be an error.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'semel_schema'
