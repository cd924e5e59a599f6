-- Written by `python -m tools.queries` from queries/deliver.sql: change that file.
-- deliver: acknowledge an effect.
-- takes: $1 key $2 fence $3 provider_id $4 retention
-- gives: now; no row when refused
-- why: also late, as long as nobody else has taken it: that it was delivered is evidence.
UPDATE semel_effect
SET state = 'delivered', provider_id = $3,
    delivered_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint, leased_until = NULL,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4, dead_at = NULL,
    error = NULL
WHERE key = $1 AND fence = $2 AND state IN ('waiting', 'dead')
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
