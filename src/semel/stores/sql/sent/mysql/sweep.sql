-- Written by `python -m tools.queries` from queries/sweep.sql: change that file.
-- sweep: lapse, for many.
-- event: lapse
-- event: lapse, declared release
-- event: lapse, declared release, back to the queue
-- takes: limit
-- gives: state and now of each
-- why: nobody waits for it: what a request has locked is left for the next round. Resumable ones are
--      of another duty. What was renewed since was put off before. For how long a released one is
--      remembered say its own terms; where they are missing its next request lapses it.
SELECT identity AS which FROM semel_record FORCE INDEX (semel_record_due)
WHERE duty = 1 /* lease */
  AND due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  AND (on_lapse <> 2 /* release */ OR patience IS NOT NULL
       OR terms IN (SELECT id FROM semel_terms))
  AND state = 2 /* in_progress */
  AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED;

UPDATE semel_record
SET state = CASE WHEN on_lapse <> 2 /* release */ THEN 5 /* unknown */
                 WHEN patience IS NULL THEN 4 /* failed_retryable */ ELSE 1 /* pending */ END,
    duty = CASE WHEN on_lapse <> 2 /* release */ THEN 4 /* ask */
                WHEN patience IS NULL THEN 6 /* forget */ ELSE 3 /* run */ END,
    due_at = CASE WHEN on_lapse = 2 /* release */ AND patience IS NULL
                  THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        + (SELECT retention FROM semel_terms WHERE id = semel_record.terms)
                  WHEN on_lapse = 2 /* release */
                  AND abandon_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
                  THEN abandon_at
                  ELSE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) END,
    leased_until = CASE on_lapse WHEN 2 /* release */ THEN abandon_at END,
    snapshot = CASE on_lapse WHEN 2 /* release */ THEN NULL ELSE snapshot END,
    tries = NULL, reason = 'the lease ran out'
WHERE identity IN (:picked) AND state = 2 /* in_progress */
  AND leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

SELECT state, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity IN (:picked)
