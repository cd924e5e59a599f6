-- Written by `python -m tools.queries` from queries/read_event.sql: change that file.
-- read_event: whether an event was noted.
-- takes: $1 source $2 event
-- gives: one row: 1 or 0; now
-- why: an event is noted when its work is done, and asked for before.
SELECT count(*), (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_event WHERE source = $1 AND event = $2
