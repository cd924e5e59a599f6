-- Written by `python -m tools.queries` from queries/note.sql: change that file.
-- note: remember an event of a provider.
-- takes: source event keep
-- gives: now; no row when it was noted before
-- why: one statement: of many that note it at once, one is the first.
INSERT INTO semel_event (source, event, forget_at) VALUES (:source, :event, :now + :keep)
ON CONFLICT (source, event) DO NOTHING
RETURNING :now
