-- Written by `python -m tools.queries` from queries/purge_surplus.sql: change that file.
-- purge_surplus: forget the oldest notables, where there are too many.
-- takes: most limit
-- gives: now for each
-- why: whatever comes, there are no more than so many. Places are given in the order of writing.
SELECT place AS which FROM semel_notable
WHERE place <= (SELECT max(place) FROM semel_notable) - :most
  AND place > 0
ORDER BY place LIMIT :limit FOR UPDATE SKIP LOCKED;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_notable
WHERE place IN (:picked) AND place > 0
FOR UPDATE;

DELETE FROM semel_notable
WHERE place IN (:picked) AND place > 0
