-- Written by `python -m tools.queries` from queries/expire.sql: change that file.
-- expire: drop the answers that are promised no longer; the use of their keys stays remembered.
-- event: expire
-- takes: limit
-- gives: state and now of each
-- why: nobody waits for it: what a request has locked is left for the next round. A tombstone keeps
--      what refuses other requests (fingerprint) and finds it again (identity, tenant, place).
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = 5 /* expire */ AND due_at <= (SELECT :now)
    ORDER BY due_at LIMIT :limit
)
UPDATE semel_record
SET state = 6 /* expired */, snapshot = NULL, request = NULL, journal = NULL, resource = NULL,
    fields = NULL, key = NULL, duty = 6 /* forget */, due_at = forget_at, forget_at = NULL
WHERE identity IN (SELECT which FROM due) AND state = 3 /* completed */ AND due_at <= :now
RETURNING state, :now
