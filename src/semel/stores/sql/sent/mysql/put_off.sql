-- Written by `python -m tools.queries` from queries/put_off.sql: change that file.
-- put_off: what was renewed is due when its lease ends.
-- takes: limit
-- gives: now for each
-- why: renewals leave due_at alone, and here it catches up, at most once for each lease: what is not
--      lapsed must not be looked at in every round.
SELECT identity AS which FROM semel_record
WHERE duty = 1 /* lease */
  AND due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  AND duty = 1 /* lease */ AND state = 2 /* in_progress */
ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED;

UPDATE semel_record
SET due_at = leased_until
WHERE identity IN (:picked) AND duty = 1 /* lease */ AND state = 2 /* in_progress */;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity IN (:picked)
