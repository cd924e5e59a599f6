-- Written by `python -m tools.queries` from queries/lead.sql: change that file.
-- lead: be the leader, stay it, or follow one whose time is past.
-- takes: name fence lease
-- gives: leased_until and now; no row when somebody else leads
-- why: one statement: of many that try at once, one succeeds.
INSERT INTO semel_leader (name, fence, leased_until) VALUES (:name, :fence, :now + :lease)
ON CONFLICT (name) DO UPDATE
SET fence = excluded.fence, leased_until = excluded.leased_until
WHERE semel_leader.fence = excluded.fence OR semel_leader.leased_until <= :now
RETURNING leased_until, :now
