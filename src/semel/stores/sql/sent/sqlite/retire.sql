-- Written by `python -m tools.queries` from queries/retire.sql: change that file.
-- retire: what they made is no more; their answers are no longer true.
-- event: retire
-- takes: resource tenant application
-- gives: now for each record that answered for it
-- why: asked again it counts the same records; the first time stays.
UPDATE semel_record
SET retired_at = COALESCE(retired_at, :now)
WHERE substr(resource, 1, 64) = substr(:resource, 1, 64) AND resource = :resource
  AND tenant = :tenant AND state = 3 /* completed */
  AND terms IN (SELECT id FROM semel_terms WHERE application = :application)
RETURNING :now
