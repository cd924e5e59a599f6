-- Written by `python -m tools.queries` from queries/complete.sql: change that file.
-- complete: store the answer.
-- event: complete
-- takes: identity fence snapshot retention tombstone resource
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: also from unknown, for the fence that last held it: the late result is evidence. A lease that
--      is past does not matter as long as nobody acted on it.
UPDATE semel_record
SET state = 3 /* completed */, snapshot = :snapshot, leased_until = NULL,
    duty = 5 /* expire */, due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        + :retention,
    forget_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :retention
        + :tombstone, reason = NULL, resource = :resource,
    request = NULL
WHERE identity = :identity AND fence = :fence AND state IN (2 /* in_progress */, 5 /* unknown */);

SELECT state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity = :identity AND ROW_COUNT() > 0
