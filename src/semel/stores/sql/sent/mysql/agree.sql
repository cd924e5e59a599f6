-- Written by `python -m tools.queries` from queries/mysql/agree.sql: change that file.
-- agree: put terms on record.
-- takes: id application route retention tombstone said
-- gives: what they say, and now; no row when a rival came first
-- why: content names them, so nobody ever changes them.
SELECT MAX(1) INTO @semel_found FROM semel_terms WHERE id = :id;

INSERT INTO semel_terms (id, application, route, retention, tombstone, said)
SELECT :id, :application, :route, :retention, :tombstone, :said FROM DUAL
WHERE @semel_found IS NULL;

SELECT said, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_terms WHERE id = :id
