-- point: where the status of a call can be asked for.
-- takes: id status_url
-- gives: nothing
-- why: a resumed call asks there first.
UPDATE call SET status_url = :status_url WHERE id = :id AND finished_at IS NULL
