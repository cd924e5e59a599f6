-- Written by `python -m tools.queries` from queries/expire.sql: change that file.
-- expire: drop the answers that are promised no longer; the use of their keys stays remembered.
-- event: expire
-- takes: limit
-- gives: state and now of each
-- why: nobody waits for it: what a request has locked is left for the next round.
SELECT identity AS which FROM semel_record
WHERE duty = 'expire'
  AND due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND state = 'completed'
  AND expires_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED;

UPDATE semel_record
SET state = 'expired', snapshot = NULL, request = NULL, journal = NULL, duty = 'forget',
    due_at = forget_at
WHERE identity IN (:picked) AND state = 'completed'
  AND expires_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

SELECT state, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity IN (:picked)
