-- Written by `python -m tools.queries` from queries/complete.sql: change that file.
-- complete: store the answer.
-- event: complete
-- takes: $1 identity $2 fence $3 snapshot $4 retention $5 tombstone $6 resource
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: also from unknown, for the fence that last held it: the late result is evidence. A lease that
--      is past does not matter as long as nobody acted on it.
UPDATE semel_record
SET state = 3 /* completed */, snapshot = $3, leased_until = NULL,
    duty = 5 /* expire */, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4,
    forget_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4 + $5, reason = NULL,
    resource = $6,
    request = NULL
WHERE identity = $1 AND fence = $2 AND state IN (2 /* in_progress */, 5 /* unknown */)
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
