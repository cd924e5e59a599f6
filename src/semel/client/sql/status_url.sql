-- status_url: where the server offers the status of a call.
-- takes: id status_url
-- gives: nothing
-- why: a resumed call asks there first.
UPDATE call SET status_url = :status_url WHERE id = :id AND finished_at IS NULL
