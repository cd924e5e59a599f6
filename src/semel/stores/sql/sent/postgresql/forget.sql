-- Written by `python -m tools.queries` from queries/forget.sql: change that file.
-- forget: remove a settled record whose time is over.
-- event: forget
-- takes: $1 identity $2 seen
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: by the store's clock, and only settled states: an unsettled record never becomes free by time.
DELETE FROM semel_record
WHERE identity = $1 AND fence = $2
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */)
  AND CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING CAST(NULL AS smallint), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT),
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
