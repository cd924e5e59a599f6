-- lead: be the leader, stay it, or follow one whose time is past.
-- takes: name fence lease
-- gives: leased_until and now; no row when somebody else leads
-- why: one statement writes: of many that try at once, one succeeds. Assignments are made from left
--      to right, and the second sees what the first has done.
INSERT INTO semel_leader (name, fence, leased_until) VALUES (:name, :fence, {now} + :lease)
ON DUPLICATE KEY UPDATE
    fence = IF(fence = :fence OR leased_until <= {now}, :fence, fence),
    leased_until = IF(fence = :fence, {now} + :lease, leased_until);
SELECT leased_until, {now} FROM semel_leader WHERE name = :name AND fence = :fence
