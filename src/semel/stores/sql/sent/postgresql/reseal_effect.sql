-- Written by `python -m tools.queries` from queries/reseal_effect.sql: change that file.
-- reseal_effect: exchange a payload for other bytes that mean the same.
-- takes: $1 key $2 old $3 new
-- gives: now; no row when it has changed or is gone
-- why: a payload never changes otherwise.
UPDATE semel_effect SET payload = $3
WHERE key = $1 AND payload = $2
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
