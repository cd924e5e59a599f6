-- Written by `python -m tools.queries` from queries/forget.sql: change that file.
-- forget: remove a settled record whose time is over.
-- event: forget
-- takes: identity seen
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: by the store's clock, and only settled states: an unsettled record never becomes free by time.
SELECT NULL, NULL, NULL, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND fence = :seen
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */)
  AND CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FOR UPDATE;

DELETE FROM semel_record
WHERE identity = :identity AND fence = :seen
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */)
  AND CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
