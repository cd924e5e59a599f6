-- Written by `python -m tools.queries` from queries/read_leader.sql: change that file.
-- read_leader: until when somebody leads.
-- takes: name
-- gives: leased_until, now; no row when nobody ever led
-- why: follows a lead that was refused.
SELECT leased_until, :now FROM semel_leader WHERE name = :name
