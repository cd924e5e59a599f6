-- evict: an operator removes a settled record before its time.
-- event: evict
-- audits: evict -
-- takes: identity seen
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: only settled states; what is in flight or unknown needs other means.
DELETE FROM semel_record
WHERE identity = :identity AND fence = :seen
  AND state IN ({completed}, {failed_retryable}, {expired})
RETURNING CAST(NULL AS smallint), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), {now}
