-- Written by `python -m tools.queries` from queries/fail.sql: change that file.
-- fail: a delivery failed; again later, or never.
-- takes: key fence error again_in
-- gives: now; no row when refused or already told
-- why: the fence stays, so that the same failure told twice is one failure.
UPDATE semel_effect
SET state = CASE WHEN :again_in IS NULL THEN 'dead' ELSE 'waiting' END,
    dead_at = CASE WHEN :again_in IS NULL
                   THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) END,
    due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :again_in,
    leased_until = NULL, error = :error
WHERE `key` = :key AND fence = :fence AND state = 'waiting' AND leased_until IS NOT NULL;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_effect
WHERE `key` = :key AND ROW_COUNT() > 0
