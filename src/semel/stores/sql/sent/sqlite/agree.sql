-- Written by `python -m tools.queries` from queries/agree.sql: change that file.
-- agree: put terms on record.
-- takes: id application route retention tombstone said
-- gives: what they say, and now; no row when they are there already
-- why: content names them, so nobody ever changes them.
INSERT INTO semel_terms (id, application, route, retention, tombstone, said)
VALUES (:id, :application, :route, :retention, :tombstone, :said)
ON CONFLICT (id) DO NOTHING
RETURNING said, :now
