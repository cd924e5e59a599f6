-- newest_dead_effects: the same on the shelf of the dead, where effects have no time.
-- takes: number name limit
-- gives: due_at, place, whether it is of that name, the effect, which has a payload only then; now
-- why: the index has them in the order in which they were written.
SELECT due_at, place,
       CASE WHEN CAST(:name AS text) IS NULL OR name = CAST(:name AS text) THEN 1 ELSE 0 END,
       key, identity, name,
       CASE WHEN CAST(:name AS text) IS NULL OR name = CAST(:name AS text) THEN payload END,
       order_key, tries, created_at, error, dead_at, delivered_at, provider_id, due_at,
       leased_until, application, {now}
FROM semel_effect
WHERE state = 'dead' AND due_at IS NULL AND place < :number
ORDER BY place DESC LIMIT :limit
