-- Written by `python -m tools.queries` from queries/mysql/purge_events.sql: change that file.
-- purge_events: forget events of providers past their time.
-- takes: limit
-- gives: now for each
-- why: by then the provider sends them no more. They are chosen by two columns.
SELECT source, event FROM semel_event
WHERE forget_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
ORDER BY forget_at LIMIT :limit FOR UPDATE SKIP LOCKED;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_event
WHERE (source, event) IN (:picked);

DELETE FROM semel_event
WHERE (source, event) IN (:picked)
