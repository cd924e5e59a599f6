-- Written by `python -m tools.queries` from queries/clock.sql: change that file.
-- clock: what time it is.
-- takes:
-- gives: one row: now
-- why: follows a statement that changed nothing, whose rows would have told.
SELECT :now
