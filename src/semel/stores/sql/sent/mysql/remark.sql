-- Written by `python -m tools.queries` from queries/mysql/remark.sql: change that file.
-- remark: put an act on record that is no single step.
-- takes: verb actor why subject
-- gives: now
-- why: before its first step and after its last: an act that was begun is never without an entry.
INSERT INTO semel_audit (at, verb, actor, reason, subject)
VALUES (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), :verb, :actor, :why, :subject);

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
