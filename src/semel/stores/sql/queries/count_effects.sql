-- count_effects: how many effects wait, and how many are dead.
-- takes: limit
-- gives: a row for each kind there is: 1 for those that wait, 2 for the dead; how many, when the
--        oldest was made, now
-- why: for people. Both are found by the index, and no more of them than the limit is read.
SELECT kind, count(*), min(made), {now}
FROM (
    SELECT kind, made FROM (
        SELECT 1 AS kind, created_at AS made FROM semel_effect
        WHERE state = 'waiting' ORDER BY due_at, place LIMIT :limit
    ) AS waiting
    UNION ALL
    SELECT kind, made FROM (
        SELECT 2 AS kind, created_at AS made FROM semel_effect
        WHERE state = 'dead' AND due_at IS NULL ORDER BY place LIMIT :limit
    ) AS dead
) AS found
GROUP BY kind
