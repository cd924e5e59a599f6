-- Written by `python -m tools.queries` from queries/postgresql/complete_many.sql: change that file.
-- complete_many: complete, for many records at once.
-- event: complete
-- takes: $1 identity $2 fence $3 snapshot $4 retention $5 tombstone $6 resource
-- gives: identity, state, leased_until, expires_at and now of each that was applied, in any order
-- why: as claim_many.
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', '100ms', true)
),
given AS MATERIALIZED (
    SELECT given.*
    FROM patience CROSS JOIN unnest(
        CAST($1 AS bytea[]), CAST($2 AS bytea[]), CAST($3 AS bytea[]),
        CAST($4 AS bigint[]), CAST($5 AS bigint[]), CAST($6 AS text[])
    ) AS given (identity, fence, snapshot, retention, tombstone, resource)
    ORDER BY given.identity
)
UPDATE semel_record AS record
SET state = 3 /* completed */, snapshot = given.snapshot, leased_until = NULL,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + given.retention,
    forget_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + given.retention
        + given.tombstone, reason = NULL,
    resource = given.resource, request = NULL, duty = 5 /* expire */
FROM given
WHERE record.identity = given.identity AND record.fence = given.fence
  AND record.state IN (2 /* in_progress */, 5 /* unknown */)
RETURNING record.identity, record.state, record.leased_until,
          CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
