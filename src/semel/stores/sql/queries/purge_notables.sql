-- purge_notables: forget notables past their time.
-- takes: limit
-- gives: now for each
-- why: by the store's clock. Nobody waits for it.
WITH due AS MATERIALIZED (
    SELECT place AS which FROM semel_notable
    WHERE forget_at <= (SELECT {now})
    ORDER BY forget_at LIMIT :limit {locked}
)
DELETE FROM semel_notable
WHERE place {chosen} AND forget_at <= {now}
RETURNING {now}
