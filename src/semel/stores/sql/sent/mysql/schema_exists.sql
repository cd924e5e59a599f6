-- Written by `python -m tools.queries` from queries/mysql/schema_exists.sql: change that file.
-- schema_exists: whether semel ever made its tables here.
-- takes:
-- gives: one row, one column: 1 or 0
-- why: asking for the version of a schema that is not there would be an error.
SELECT count(*) FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = 'semel_schema'
