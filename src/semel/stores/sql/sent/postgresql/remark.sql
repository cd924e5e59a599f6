-- Written by `python -m tools.queries` from queries/remark.sql: change that file.
-- remark: put an act on record that is no single step.
-- takes: $1 verb $2 actor $3 why $4 subject
-- gives: now
-- why: before its first step and after its last: an act that was begun is never without an entry.
INSERT INTO semel_audit (at, verb, actor, reason, subject)
VALUES ((extract(epoch from clock_timestamp()) * 1000000)::bigint, $1, $2, $3, $4)
RETURNING (extract(epoch from clock_timestamp()) * 1000000)::bigint
