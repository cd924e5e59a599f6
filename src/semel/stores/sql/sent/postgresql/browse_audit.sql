-- Written by `python -m tools.queries` from queries/browse_audit.sql: change that file.
-- browse_audit: what was done, newest first.
-- takes: $1 before $2 limit
-- gives: place, at, verb, actor, reason, identity, subject, state_before, state_after, now
-- why: for operators and auditors. In the order they were written, as far as a database knows it.
SELECT place, at, verb, actor, reason, identity, subject, state_before, state_after,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_audit
WHERE place < $1
ORDER BY place DESC LIMIT $2
