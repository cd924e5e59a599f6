-- Written by `python -m tools.queries` from queries/schema_version.sql: change that file.
-- schema_version: the newest migration that was applied, and which programs it allows for.
-- takes:
-- gives: one row, two columns: the version, and the oldest program's that may work with it; or NULLs
-- why: nodes are upgraded one after the other; one that is too old is refused, never worked with.
SELECT max(version), max(oldest) FROM semel_schema
