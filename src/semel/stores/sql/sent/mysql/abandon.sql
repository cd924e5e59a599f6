-- Written by `python -m tools.queries` from queries/abandon.sql: change that file.
-- abandon: complete deferred requests that nobody ran in time.
-- event: abandon
-- takes: limit snapshot
-- gives: state and now of each
-- why: by the store's clock. What a worker has just taken is locked, or no longer pending. The answer
--      is kept as long as the record's own terms say.
SELECT identity AS which FROM semel_record
WHERE duty = 3 /* run */
  AND due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  AND terms IN (SELECT id FROM semel_terms)
  AND state = 1 /* pending */
  AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED;

UPDATE semel_record
SET state = 3 /* completed */, snapshot = :snapshot, leased_until = NULL, request = NULL,
    forget_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        + (SELECT retention FROM semel_terms WHERE id = semel_record.terms)
        + (SELECT tombstone FROM semel_terms WHERE id = semel_record.terms),
    duty = 5 /* expire */, due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        + (SELECT retention FROM semel_terms WHERE id = semel_record.terms),
    reason = 'nobody ran it in time'
WHERE identity IN (:picked) AND state = 1 /* pending */
  AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

SELECT state, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity IN (:picked)
