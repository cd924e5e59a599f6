-- Written by `python -m tools.queries` from queries/purge_notables.sql: change that file.
-- purge_notables: forget notables past their time.
-- takes: $1 limit
-- gives: now for each
-- why: by the store's clock. Nobody waits for it.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_notable
    WHERE forget_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
    ORDER BY forget_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM semel_notable
WHERE place = ANY (ARRAY(SELECT which FROM due))
  AND forget_at <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
