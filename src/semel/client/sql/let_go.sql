-- let_go: leave a call to whoever resumes it.
-- takes: id held_by
-- gives: nothing
-- why: only one's own hold.
UPDATE call SET held_by = '', held_until = 0 WHERE id = :id AND held_by = :held_by
