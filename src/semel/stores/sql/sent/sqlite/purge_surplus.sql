-- Written by `python -m tools.queries` from queries/purge_surplus.sql: change that file.
-- purge_surplus: forget the oldest notables, where there are too many.
-- takes: most limit
-- gives: now for each
-- why: whatever comes, there are no more than so many. Places are given in the order of writing.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_notable
    WHERE place <= (SELECT max(place) FROM semel_notable) - :most
    ORDER BY place LIMIT :limit
)
DELETE FROM semel_notable
WHERE place IN (SELECT which FROM due) AND place > 0
RETURNING :now
