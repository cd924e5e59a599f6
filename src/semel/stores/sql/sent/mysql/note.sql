-- Written by `python -m tools.queries` from queries/mysql/note.sql: change that file.
-- note: remember an event of a provider.
-- takes: source event keep
-- gives: now; no row when it was noted before, which is an error here
-- why: one statement: of many that note it at once, one is the first.
INSERT INTO semel_event (source, event, forget_at) VALUES (:source, :event,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :keep);

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
