-- Written by `python -m tools.queries` from queries/agree.sql: change that file.
-- agree: put terms on record.
-- takes: $1 id $2 application $3 route $4 retention $5 tombstone $6 said
-- gives: what they say, and now; no row when they are there already
-- why: content names them, so nobody ever changes them.
INSERT INTO semel_terms (id, application, route, retention, tombstone, said)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (id) DO NOTHING
RETURNING said, (extract(epoch from clock_timestamp()) * 1000000)::bigint
