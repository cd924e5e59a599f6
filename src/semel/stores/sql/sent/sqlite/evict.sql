-- Written by `python -m tools.queries` from queries/evict.sql: change that file.
-- evict: an operator removes a settled record before its time.
-- event: evict
-- audits: evict -
-- takes: identity seen actor why
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: only settled states; what is in flight or unknown needs other means.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT :now,
       'evict', CAST(:actor AS text), CAST(:why AS text), identity, CAST(NULL AS text),
       CASE state
       WHEN 1 THEN 'pending'
       WHEN 2 THEN 'in_progress'
       WHEN 3 THEN 'completed'
       WHEN 4 THEN 'failed_retryable'
       WHEN 5 THEN 'unknown'
       WHEN 6 THEN 'expired' END,
       CAST(NULL AS text)
FROM semel_record
WHERE identity = :identity AND fence = :seen
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */);

DELETE FROM semel_record
WHERE identity = :identity AND fence = :seen
  AND state IN (3 /* completed */, 4 /* failed_retryable */, 6 /* expired */)
RETURNING CAST(NULL AS smallint), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), :now
