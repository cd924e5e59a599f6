-- Written by `python -m tools.queries` from queries/lead.sql: change that file.
-- lead: be the leader, stay it, or follow one whose time is past.
-- takes: $1 name $2 fence $3 lease
-- gives: leased_until and now; no row when somebody else leads
-- why: one statement: of many that try at once, one succeeds.
INSERT INTO semel_leader (name, fence, leased_until) VALUES ($1, $2,
(extract(epoch from clock_timestamp()) * 1000000)::bigint + $3)
ON CONFLICT (name) DO UPDATE
SET fence = excluded.fence, leased_until = excluded.leased_until
WHERE semel_leader.fence = excluded.fence
  OR semel_leader.leased_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint
RETURNING leased_until, (extract(epoch from clock_timestamp()) * 1000000)::bigint
