-- Written by `python -m tools.queries` from queries/expire.sql: change that file.
-- expire: drop the answers that are promised no longer; the use of their keys stays remembered.
-- event: expire
-- takes: $1 limit
-- gives: state and now of each
-- why: nobody waits for it: what a request has locked is left for the next round.
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = 'expire'
      AND due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE semel_record
SET state = 'expired', snapshot = NULL, request = NULL, journal = NULL, duty = 'forget',
    due_at = forget_at
WHERE identity = ANY (ARRAY(SELECT which FROM due)) AND state = 'completed'
  AND expires_at <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING state, (extract(epoch from clock_timestamp()) * 1000000)::bigint
