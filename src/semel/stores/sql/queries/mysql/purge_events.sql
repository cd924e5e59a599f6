-- purge_events: forget events of providers past their time.
-- takes: limit
-- gives: now for each
-- why: by then the provider sends them no more. They are chosen by two columns.
SELECT source, event FROM semel_event
WHERE forget_at <= (SELECT {now})
ORDER BY forget_at LIMIT :limit {locked};
SELECT {now}
FROM semel_event
WHERE (source, event) {chosen};
DELETE FROM semel_event
WHERE (source, event) {chosen}
