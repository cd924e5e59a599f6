-- release: end the hold of a call; any process may resume it.
-- takes: id held_by
-- gives: nothing
-- why: a process may end its own hold only.
UPDATE call SET held_by = '', held_until = 0 WHERE id = :id AND held_by = :held_by
