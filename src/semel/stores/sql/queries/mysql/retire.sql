-- retire: what they made is no more; their answers are no longer true.
-- event: retire
-- takes: resource tenant application
-- gives: now for each record that answered for it
-- why: asked again it counts the same records; the first time stays. The index has the first bytes
--      of a resource.
UPDATE semel_record
SET retired_at = COALESCE(retired_at, {now})
WHERE resource = :resource AND tenant = :tenant AND state = {completed}
  AND terms IN (SELECT id FROM semel_terms WHERE application = :application);
SELECT {now} FROM semel_record
WHERE resource = :resource AND tenant = :tenant AND retired_at IS NOT NULL AND state = {completed}
  AND terms IN (SELECT id FROM semel_terms WHERE application = :application)
