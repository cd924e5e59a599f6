-- Written by `python -m tools.queries` from queries/forget.sql: change that file.
-- forget: remove a settled record whose time is over.
-- event: forget
-- takes: $1 identity $2 seen
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: by the store's clock, and only settled states: an unsettled record never becomes free by time.
DELETE FROM semel_record
WHERE identity = $1 AND fence = $2
  AND state IN ('completed', 'failed_retryable', 'expired')
  AND forget_at <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING CAST(NULL AS TEXT), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT),
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
