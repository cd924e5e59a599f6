-- Written by `python -m tools.queries` from queries/purge_surplus.sql: change that file.
-- purge_surplus: forget the oldest notables, where there are too many.
-- takes: $1 most $2 limit
-- gives: now for each
-- why: whatever comes, there are no more than so many. Places are given in the order of writing.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_notable
    WHERE place <= (SELECT max(place) FROM semel_notable) - $1
    ORDER BY place LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM semel_notable
WHERE place = ANY (ARRAY(SELECT which FROM due)) AND place > 0
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
