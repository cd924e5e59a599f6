-- Written by `python -m tools.queries` from queries/abandon.sql: change that file.
-- abandon: complete deferred requests that nobody ran in time.
-- event: abandon
-- takes: $1 limit $2 snapshot
-- gives: state and now of each
-- why: by the store's clock. What a worker has just taken is locked, or no longer pending. The answer
--      is kept as long as the record's own terms say.
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = 3 /* run */
      AND due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
      AND leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
      AND terms IN (SELECT id FROM semel_terms)
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE semel_record
SET state = 3 /* completed */, snapshot = $2, leased_until = NULL, request = NULL,
    forget_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint
        + (SELECT retention FROM semel_terms WHERE id = semel_record.terms)
        + (SELECT tombstone FROM semel_terms WHERE id = semel_record.terms),
    duty = 5 /* expire */, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint
        + (SELECT retention FROM semel_terms WHERE id = semel_record.terms),
    reason = 'nobody ran it in time'
WHERE identity = ANY (ARRAY(SELECT which FROM due)) AND state = 1 /* pending */
  AND leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING state, (extract(epoch from clock_timestamp()) * 1000000)::bigint
