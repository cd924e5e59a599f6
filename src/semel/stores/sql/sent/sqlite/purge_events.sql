-- Written by `python -m tools.queries` from queries/purge_events.sql: change that file.
-- purge_events: forget events of providers past their time.
-- takes: limit
-- gives: now for each
-- why: by then the provider sends them no more.
WITH due AS MATERIALIZED (
    SELECT source AS who, event AS what FROM semel_event
    WHERE forget_at <= (SELECT :now)
    ORDER BY forget_at LIMIT :limit
)
DELETE FROM semel_event
WHERE (source, event) IN (SELECT who, what FROM due) AND forget_at <= :now
RETURNING :now
