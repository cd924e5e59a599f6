-- Written by `python -m tools.queries` from queries/read_leader.sql: change that file.
-- read_leader: until when somebody leads.
-- takes: $1 name
-- gives: leased_until, now; no row when nobody ever led
-- why: follows a lead that was refused.
SELECT leased_until, (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_leader WHERE name = $1
