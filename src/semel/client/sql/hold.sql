-- hold: hold a call for longer.
-- takes: id held_by held_until needed
-- gives: nothing
-- why: never shortens a hold, and never takes one back. One that reaches far enough is not written.
UPDATE call SET held_until = :held_until
WHERE id = :id AND finished_at IS NULL AND held_by = :held_by AND held_until < :needed
