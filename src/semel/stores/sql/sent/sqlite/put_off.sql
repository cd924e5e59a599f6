-- Written by `python -m tools.queries` from queries/put_off.sql: change that file.
-- put_off: what was renewed is due when its lease ends.
-- takes: limit
-- gives: now for each
-- why: renewals leave due_at alone, and here it catches up, at most once for each lease: what is not
--      lapsed must not be looked at in every round.
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = 1 /* lease */ AND due_at <= (SELECT :now) AND leased_until > :now
    ORDER BY due_at LIMIT :limit
)
UPDATE semel_record
SET due_at = leased_until
WHERE identity IN (SELECT which FROM due) AND duty = 1 /* lease */ AND state = 2 /* in_progress */
RETURNING :now
