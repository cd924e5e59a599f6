-- Written by `python -m tools.queries` from queries/mysql/schema_engines.sql: change that file.
-- schema_engines: the tables here whose engine cannot roll back, MyISAM and Aria for example.
-- takes:
-- gives: rows of two columns: a table, and its engine
-- why: what is written there stays when its transaction is undone, and may be lost in a crash.
SELECT tables.table_name, tables.engine FROM information_schema.tables AS tables
LEFT JOIN information_schema.engines AS engines ON engines.engine = tables.engine
WHERE tables.table_schema = DATABASE() AND tables.table_type = 'BASE TABLE'
  AND coalesce(engines.transactions, 'NO') <> 'YES'
ORDER BY tables.table_name
