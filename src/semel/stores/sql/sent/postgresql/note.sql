-- Written by `python -m tools.queries` from queries/note.sql: change that file.
-- note: remember an event of a provider.
-- takes: $1 source $2 event $3 keep
-- gives: now; no row when it was noted before
-- why: one statement: of many that note it at once, one is the first.
INSERT INTO semel_event (source, event, forget_at) VALUES ($1, $2,
(extract(epoch from clock_timestamp()) * 1000000)::bigint + $3)
ON CONFLICT (source, event) DO NOTHING
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
