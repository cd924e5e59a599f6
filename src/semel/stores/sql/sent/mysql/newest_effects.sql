-- Written by `python -m tools.queries` from queries/newest_effects.sql: change that file.
-- newest_effects: effects on one shelf, latest due first; of one name, if one is given.
-- takes: shelf due number name limit
-- gives: due_at, place, whether it is of that name, the effect, which has a payload only then; now
-- why: reads the index backwards, as far as the page goes and no further. Payloads of other names,
--      which may be large, stay where they are.
SELECT due_at, place,
       CASE WHEN :name IS NULL OR name = :name THEN 1 ELSE 0 END,
       `key`, identity, name,
       CASE WHEN :name IS NULL OR name = :name THEN payload END,
       order_key, tries, created_at, error, dead_at, delivered_at, provider_id, due_at,
       leased_until, application, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_effect
WHERE state = :shelf AND due_at <= :due AND (due_at < :due OR place < :number)
ORDER BY due_at DESC, place DESC LIMIT :limit
