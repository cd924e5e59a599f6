-- Written by `python -m tools.queries` from queries/postgresql/renew_many.sql: change that file.
-- renew_many: renew, for many records at once.
-- event: renew
-- takes: $1 identity $2 fence $3 lease
-- gives: identity, state, leased_until, expires_at and now of each that was applied, in any order
-- why: as claim_many.
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', '100ms', true)
),
given AS MATERIALIZED (
    SELECT given.*
    FROM patience CROSS JOIN unnest(
        CAST($1 AS bytea[]), CAST($2 AS bytea[]), CAST($3 AS bigint[])
    ) AS given (identity, fence, lease)
    ORDER BY given.identity
)
UPDATE semel_record AS record
SET leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + given.lease,
    due_at = CASE record.duty WHEN 1 /* lease */ THEN record.due_at
                  ELSE (extract(epoch from clock_timestamp()) * 1000000)::bigint + given.lease END
FROM given
WHERE record.identity = given.identity AND record.fence = given.fence
  AND record.state = 2 /* in_progress */
  AND record.leased_until > (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING record.identity, record.state, record.leased_until,
          CASE WHEN state = 3 /* completed */ THEN due_at END,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
