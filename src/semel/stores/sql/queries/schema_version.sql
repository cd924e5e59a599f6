-- schema_version: the newest migration that was applied.
-- takes:
-- gives: one row, one column: the version, or NULL
-- why: a version this program does not know is refused, never worked with.
SELECT max(version) FROM semel_schema
