-- Written by `python -m tools.queries` from queries/browse_audit.sql: change that file.
-- browse_audit: what was done, newest first.
-- takes: before limit
-- gives: place, at, verb, actor, reason, identity, subject, state_before, state_after, now
-- why: for operators and auditors. In the order they were written, as far as a database knows it.
SELECT place, at, verb, actor, reason, identity, subject, state_before, state_after,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_audit
WHERE place < :before
ORDER BY place DESC LIMIT :limit
