-- Written by `python -m tools.queries` from queries/remark.sql: change that file.
-- remark: put an act on record that is no single step.
-- takes: verb actor why subject
-- gives: now
-- why: before its first step and after its last: an act that was begun is never without an entry.
INSERT INTO semel_audit (at, verb, actor, reason, subject)
VALUES (:now, :verb, :actor, :why, :subject)
RETURNING :now
