-- forget: delete a call.
-- takes: id
-- gives: nothing
-- why: it was never sent, or somebody has decided about it.
DELETE FROM call WHERE id = :id
