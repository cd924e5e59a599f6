-- take: hold a pending call, if its hold is still what was seen.
-- takes: id seen_by seen_until held_by held_until
-- gives: its row number; nothing when another process was faster
-- why: whether a holder is dead is found out outside, so the row may have changed since then.
UPDATE call SET held_by = :held_by, held_until = :held_until
WHERE id = :id AND finished_at IS NULL AND held_by = :seen_by AND held_until = :seen_until
RETURNING id
