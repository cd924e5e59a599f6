-- Written by `python -m tools.queries` from queries/put_off.sql: change that file.
-- put_off: what was renewed is due when its lease ends.
-- takes: $1 limit
-- gives: now for each
-- why: renewals leave due_at alone, and here it catches up, at most once for each lease: what is not
--      lapsed must not be looked at in every round.
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = 1 /* lease */
      AND due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
      AND leased_until > (extract(epoch from clock_timestamp()) * 1000000)::bigint
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE semel_record
SET due_at = leased_until
WHERE identity = ANY (ARRAY(SELECT which FROM due)) AND duty = 1 /* lease */
  AND state = 2 /* in_progress */
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
