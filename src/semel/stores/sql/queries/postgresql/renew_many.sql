-- renew_many: renew, for many records at once.
-- event: renew
-- takes: identity fence lease
-- gives: identity, state, leased_until, expires_at and now of each that was applied, in any order
-- why: as claim_many.
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', '100ms', true)
),
given AS MATERIALIZED (
    SELECT given.*
    FROM patience CROSS JOIN unnest(
        CAST(:identity AS bytea[]), CAST(:fence AS bytea[]), CAST(:lease AS bigint[])
    ) AS given (identity, fence, lease)
    ORDER BY given.identity
)
UPDATE semel_record AS record
SET leased_until = {now} + given.lease,
    due_at = CASE record.duty WHEN {duty.lease} THEN record.due_at ELSE {now} + given.lease END
FROM given
WHERE record.identity = given.identity AND record.fence = given.fence
  AND record.state = {in_progress} AND record.leased_until > {now}
RETURNING record.identity, record.state, record.leased_until, {expires_at}, {now}
