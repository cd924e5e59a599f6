-- Written by `python -m tools.queries` from queries/purge_workers.sql: change that file.
-- purge_workers: forget workers that have long been silent.
-- takes: $1 memory $2 limit
-- gives: now for each
-- why: one that is killed does not say goodbye. They are few: no index.
--      One that is heard of meanwhile stays.
WITH due AS MATERIALIZED (
    SELECT id AS which FROM semel_worker
    WHERE until <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint) - $1
    ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM semel_worker
WHERE id = ANY (ARRAY(SELECT which FROM due))
  AND until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint - $1
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
