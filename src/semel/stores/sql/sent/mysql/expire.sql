-- Written by `python -m tools.queries` from queries/expire.sql: change that file.
-- expire: drop the answers that are promised no longer; the use of their keys stays remembered.
-- event: expire
-- takes: limit
-- gives: state and now of each
-- why: nobody waits for it: what a request has locked is left for the next round. A tombstone keeps
--      what refuses other requests (fingerprint) and finds it again (identity, tenant, place).
SELECT identity AS which FROM semel_record
WHERE duty = 5 /* expire */
  AND due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND state = 3 /* completed */
  AND due_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED;

UPDATE semel_record
SET state = 6 /* expired */, snapshot = NULL, request = NULL, journal = NULL, resource = NULL,
    fields = NULL, `key` = NULL, duty = 6 /* forget */, due_at = forget_at, forget_at = NULL
WHERE identity IN (:picked) AND state = 3 /* completed */
  AND due_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

SELECT state, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity IN (:picked)
