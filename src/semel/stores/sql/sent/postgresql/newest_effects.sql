-- Written by `python -m tools.queries` from queries/newest_effects.sql: change that file.
-- newest_effects: effects on one shelf, latest due first; of one name, if one is given.
-- takes: $1 shelf $2 due $3 number $4 name $5 limit
-- gives: due_at, place, whether it is of that name, the effect, which has a payload only then; now
-- why: reads the index backwards, as far as the page goes and no further. Payloads of other names,
--      which may be large, stay where they are.
SELECT due_at, place,
       CASE WHEN CAST($4 AS text) IS NULL OR name = CAST($4 AS text) THEN 1 ELSE 0 END,
       key, identity, name,
       CASE WHEN CAST($4 AS text) IS NULL OR name = CAST($4 AS text) THEN payload END,
       order_key, tries, created_at, error, dead_at, delivered_at, provider_id, due_at,
       leased_until, application, (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_effect
WHERE state = $1 AND due_at <= $2 AND (due_at < $2 OR place < $3)
ORDER BY due_at DESC, place DESC LIMIT $5
