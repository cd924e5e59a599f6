-- Written by `python -m tools.queries` from queries/deliver.sql: change that file.
-- deliver: acknowledge an effect.
-- takes: key fence provider_id retention
-- gives: now; no row when refused
-- why: also late, as long as nobody else has taken it: that it was delivered is evidence.
UPDATE semel_effect
SET state = 'delivered', provider_id = :provider_id, delivered_at = :now, leased_until = NULL,
    due_at = :now + :retention, dead_at = NULL, error = NULL
WHERE key = :key AND fence = :fence AND state IN ('waiting', 'dead')
RETURNING :now
