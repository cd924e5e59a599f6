-- Written by `python -m tools.queries` from queries/schema_record.sql: change that file.
-- schema_record: write down that a migration was applied.
-- takes: version name oldest
-- gives: nothing
-- why: in the same transaction as the migration itself.
INSERT INTO semel_schema (version, name, oldest, applied_at) VALUES (:version, :name, :oldest, :now)
