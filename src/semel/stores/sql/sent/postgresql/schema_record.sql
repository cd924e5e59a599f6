-- Written by `python -m tools.queries` from queries/schema_record.sql: change that file.
-- schema_record: write down that a migration was applied.
-- takes: $1 version $2 name $3 oldest
-- gives: nothing
-- why: in the same transaction as the migration itself.
INSERT INTO semel_schema (version, name, oldest, applied_at) VALUES ($1, $2, $3,
(extract(epoch from clock_timestamp()) * 1000000)::bigint)
