-- Written by `python -m tools.queries` from queries/take_effects.sql: change that file.
-- take_effects: take effects that are due, for a while.
-- takes: names limit fence lease application
-- gives: place, the effect and now of each, in any order
-- why: of one order only the oldest unfinished is taken, and none while another is under way; a later
--      one never overtakes, a dead one steps aside. What is taken is due again when its lease ends.
SELECT effect.place AS which FROM semel_effect AS effect
WHERE effect.state = 'waiting'
  AND effect.due_at <= (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  AND effect.name IN (:names)
  AND effect.application = :application
  AND (effect.order_key IS NULL OR NOT EXISTS (
      SELECT 1 FROM semel_effect AS other
      WHERE other.order_key = effect.order_key AND other.state = 'waiting'
        AND other.application = effect.application
        AND other.place <> effect.place
        AND (other.place < effect.place
             OR other.leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  ))
  AND state = 'waiting'
ORDER BY effect.due_at, effect.place LIMIT :limit FOR UPDATE SKIP LOCKED;

UPDATE semel_effect
SET fence = :fence, tries = tries + 1,
    leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease
WHERE place IN (:picked) AND state = 'waiting';

SELECT place, `key`, identity, name, payload, order_key, tries, created_at, error, dead_at,
          delivered_at, provider_id, due_at, leased_until, application,
          TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_effect
WHERE place IN (:picked)
