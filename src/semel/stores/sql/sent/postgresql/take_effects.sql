-- Written by `python -m tools.queries` from queries/take_effects.sql: change that file.
-- take_effects: take effects that are due, for a while.
-- takes: $1 names $2 limit $3 fence $4 lease $5 application
-- gives: place, the effect and now of each, in any order
-- why: of one order only the oldest unfinished is taken, and none while another is under way; a later
--      one never overtakes, a dead one steps aside. What is taken is due again when its lease ends.
WITH due AS MATERIALIZED (
    SELECT effect.place AS which FROM semel_effect AS effect
    WHERE effect.state = 'waiting'
      AND effect.due_at <= (SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)
      AND effect.name = ANY (ARRAY(SELECT json_array_elements_text(CAST($1 AS json))))
      AND effect.application = $5
      AND (effect.order_key IS NULL OR NOT EXISTS (
          SELECT 1 FROM semel_effect AS other
          WHERE other.order_key = effect.order_key AND other.state = 'waiting'
            AND other.application = effect.application
            AND other.place <> effect.place
            AND (other.place < effect.place
                 OR other.leased_until > (extract(epoch from clock_timestamp()) * 1000000)::bigint)
      ))
    ORDER BY effect.due_at, effect.place LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE semel_effect
SET fence = $3, tries = tries + 1,
    leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4,
    due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $4
WHERE place = ANY (ARRAY(SELECT which FROM due)) AND state = 'waiting'
RETURNING place, key, identity, name, payload, order_key, tries, created_at, error, dead_at,
          delivered_at, provider_id, due_at, leased_until, application,
          (extract(epoch from clock_timestamp()) * 1000000)::bigint
