-- expire: drop the answers that are promised no longer; the use of their keys stays remembered.
-- event: expire
-- takes: limit
-- gives: state and now of each
-- why: nobody waits for it: what a request has locked is left for the next round. A tombstone keeps
--      what refuses other requests (fingerprint) and finds it again (identity, tenant, place).
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = {duty.expire} AND due_at <= (SELECT {now})
    ORDER BY due_at LIMIT :limit {locked}
)
UPDATE semel_record
SET state = {expired}, snapshot = NULL, request = NULL, journal = NULL, resource = NULL,
    fields = NULL, key = NULL, duty = {duty.forget}, due_at = forget_at, forget_at = NULL
WHERE identity {chosen} AND state = {completed} AND due_at <= {now}
RETURNING state, {now}
