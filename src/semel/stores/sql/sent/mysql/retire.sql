-- Written by `python -m tools.queries` from queries/mysql/retire.sql: change that file.
-- retire: what they made is no more; their answers are no longer true.
-- event: retire
-- takes: resource tenant application
-- gives: now for each record that answered for it
-- why: asked again it counts the same records; the first time stays. The index has the first bytes
--      of a resource.
UPDATE semel_record
SET retired_at = COALESCE(retired_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
WHERE resource = :resource AND tenant = :tenant AND state = 3 /* completed */
  AND terms IN (SELECT id FROM semel_terms WHERE application = :application);

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM semel_record
WHERE resource = :resource AND tenant = :tenant AND retired_at IS NOT NULL
  AND state = 3 /* completed */
  AND terms IN (SELECT id FROM semel_terms WHERE application = :application)
