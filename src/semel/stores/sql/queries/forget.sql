-- forget: remove a settled record whose time is over.
-- event: forget
-- takes: identity seen
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: by the store's clock, and only settled states: an unsettled record never becomes free by time.
DELETE FROM semel_record
WHERE identity = :identity AND fence = :seen
  AND state IN ({completed}, {failed_retryable}, {expired}) AND {forget_at} <= {now}
RETURNING CAST(NULL AS smallint), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), {now}
