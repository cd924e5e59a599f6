-- Written by `python -m tools.queries` from queries/read_event.sql: change that file.
-- read_event: whether an event was noted.
-- takes: source event
-- gives: one row: 1 or 0; now
-- why: an event is noted when its work is done, and asked for before.
SELECT count(*), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_event WHERE source = :source AND event = :event
