-- Written by `python -m tools.queries` from queries/retire.sql: change that file.
-- retire: what they made is no more; their answers are no longer true.
-- event: retire
-- takes: $1 resource $2 tenant $3 application
-- gives: now for each record that answered for it
-- why: asked again it counts the same records; the first time stays.
UPDATE semel_record
SET retired_at = COALESCE(retired_at, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
WHERE substr(resource, 1, 64) = substr($1, 1, 64) AND resource = $1
  AND tenant = $2 AND state = 3 /* completed */
  AND terms IN (SELECT id FROM semel_terms WHERE application = $3)
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
