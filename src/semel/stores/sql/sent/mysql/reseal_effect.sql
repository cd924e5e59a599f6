-- Written by `python -m tools.queries` from queries/reseal_effect.sql: change that file.
-- reseal_effect: exchange a payload for other bytes that mean the same.
-- takes: key old new
-- gives: now; no row when it has changed or is gone
-- why: a payload never changes otherwise.
UPDATE semel_effect SET payload = :new
WHERE `key` = :key AND payload = :old;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_effect
WHERE `key` = :key AND ROW_COUNT() > 0
