-- Written by `python -m tools.queries` from queries/free_unknown.sql: change that file.
-- free_unknown: an operator gives up on an unknown record and frees the key on purpose.
-- event: evict, forced and freed on purpose
-- audits: free -
-- takes: identity seen actor why
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: the one way an unsettled key becomes free; a person said so, with a reason that is audited.
INSERT INTO semel_audit
    (at, verb, actor, reason, identity, subject, state_before, state_after)
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       'free', :actor, :why, identity, NULL,
       CASE state
       WHEN 1 THEN 'pending'
       WHEN 2 THEN 'in_progress'
       WHEN 3 THEN 'completed'
       WHEN 4 THEN 'failed_retryable'
       WHEN 5 THEN 'unknown'
       WHEN 6 THEN 'expired' END,
       NULL
FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */
FOR UPDATE;

SELECT NULL, NULL, NULL, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */
FOR UPDATE;

DELETE FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = 5 /* unknown */
