-- complete_many: complete, for many records at once.
-- event: complete
-- takes: identity fence snapshot retention tombstone resource
-- gives: identity, state, leased_until, expires_at and now of each that was applied, in any order
-- why: as claim_many.
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', '100ms', true)
),
given AS MATERIALIZED (
    SELECT given.*
    FROM patience CROSS JOIN unnest(
        CAST(:identity AS bytea[]), CAST(:fence AS bytea[]), CAST(:snapshot AS bytea[]),
        CAST(:retention AS bigint[]), CAST(:tombstone AS bigint[]), CAST(:resource AS text[])
    ) AS given (identity, fence, snapshot, retention, tombstone, resource)
    ORDER BY given.identity
)
UPDATE semel_record AS record
SET state = {completed}, snapshot = given.snapshot, leased_until = NULL,
    due_at = {now} + given.retention,
    forget_at = {now} + given.retention + given.tombstone, reason = NULL,
    resource = given.resource, request = NULL, duty = {duty.expire}
FROM given
WHERE record.identity = given.identity AND record.fence = given.fence
  AND record.state IN ({in_progress}, {unknown})
RETURNING record.identity, record.state, record.leased_until, {expires_at}, {now}
