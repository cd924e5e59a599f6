-- Written by `python -m tools.queries` from queries/evict.sql: change that file.
-- evict: an operator removes a settled record before its time.
-- event: evict
-- audits: evict -
-- takes: identity seen actor why
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: only settled states; what is in flight or unknown needs other means.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       'evict', :actor, :why, identity, NULL,
       CASE state
       WHEN 1 THEN 'pending'
       WHEN 2 THEN 'in_progress'
       WHEN 3 THEN 'completed'
       WHEN 4 THEN 'failed_retryable'
       WHEN 5 THEN 'unknown'
       WHEN 6 THEN 'expired' END,
       NULL
FROM semel_record
WHERE identity = :identity AND fence = :seen
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */)
FOR UPDATE;

SELECT NULL, NULL, NULL, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND fence = :seen
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */)
FOR UPDATE;

DELETE FROM semel_record
WHERE identity = :identity AND fence = :seen
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */)
