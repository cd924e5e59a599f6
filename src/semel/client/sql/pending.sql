-- pending: all calls without an answer, oldest first.
-- takes: nothing
-- gives: rows
-- why: old keys are the first that a server forgets.
SELECT * FROM call WHERE finished_at IS NULL ORDER BY id
