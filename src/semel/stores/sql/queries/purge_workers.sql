-- purge_workers: forget workers that have long been silent.
-- takes: memory limit
-- gives: now for each
-- why: one that is killed does not say goodbye. They are few: no index.
--      One that is heard of meanwhile stays.
WITH due AS MATERIALIZED (
    SELECT id AS which FROM semel_worker
    WHERE until <= (SELECT {now}) - :memory
    ORDER BY until LIMIT :limit {locked}
)
DELETE FROM semel_worker
WHERE id {chosen} AND until <= {now} - :memory
RETURNING {now}
