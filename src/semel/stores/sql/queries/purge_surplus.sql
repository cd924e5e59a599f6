-- purge_surplus: forget the oldest notables, where there are too many.
-- takes: most limit
-- gives: now for each
-- why: whatever comes, there are no more than so many. Places are given in the order of writing.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_notable
    WHERE place <= (SELECT max(place) FROM semel_notable) - :most
    ORDER BY place LIMIT :limit {locked}
)
DELETE FROM semel_notable
WHERE place {chosen} AND place > 0
RETURNING {now}
