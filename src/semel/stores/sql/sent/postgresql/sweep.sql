-- Written by `python -m tools.queries` from queries/sweep.sql: change that file.
-- sweep: lapse, for many.
-- event: lapse
-- event: lapse, declared release
-- event: lapse, declared release, back to the queue
-- takes: $1 limit
-- gives: state and now of each
-- why: nobody waits for it: what a request has locked is left for the next round. Resumable ones are
--      of another duty. What was renewed since was put off before. For how long a released one is
--      remembered say its own terms; where they are missing its next request lapses it.
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = 1 /* lease */
      AND due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
      AND leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
      AND (on_lapse <> 2 /* release */ OR patience IS NOT NULL
           OR terms IN (SELECT id FROM semel_terms))
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE semel_record
SET state = CASE WHEN on_lapse <> 2 /* release */ THEN 5 /* unknown */
                 WHEN patience IS NULL THEN 4 /* failed_retryable */ ELSE 1 /* pending */ END,
    duty = CASE WHEN on_lapse <> 2 /* release */ THEN 4 /* ask */
                WHEN patience IS NULL THEN 6 /* forget */ ELSE 3 /* run */ END,
    due_at = CASE WHEN on_lapse = 2 /* release */ AND patience IS NULL
                  THEN (extract(epoch from clock_timestamp()) * 1000000)::bigint
        + (SELECT retention FROM semel_terms WHERE id = semel_record.terms)
                  WHEN on_lapse = 2 /* release */
                  AND abandon_at < (extract(epoch from clock_timestamp()) * 1000000)::bigint
                  THEN abandon_at
                  ELSE (extract(epoch from clock_timestamp()) * 1000000)::bigint END,
    leased_until = CASE on_lapse WHEN 2 /* release */ THEN abandon_at END,
    snapshot = CASE on_lapse WHEN 2 /* release */ THEN NULL ELSE snapshot END,
    tries = NULL, reason = 'the lease ran out'
WHERE identity = ANY (ARRAY(SELECT which FROM due)) AND state = 2 /* in_progress */
  AND leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING state, (extract(epoch from clock_timestamp()) * 1000000)::bigint
