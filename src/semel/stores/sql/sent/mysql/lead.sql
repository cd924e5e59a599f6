-- Written by `python -m tools.queries` from queries/mysql/lead.sql: change that file.
-- lead: be the leader, stay it, or follow one whose time is past.
-- takes: name fence lease
-- gives: leased_until and now; no row when somebody else leads
-- why: one statement writes: of many that try at once, one succeeds. Assignments are made from left
--      to right, and the second sees what the first has done.
INSERT INTO semel_leader (name, fence, leased_until) VALUES (:name, :fence,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease)
ON DUPLICATE KEY UPDATE
    fence = IF(fence = :fence
               OR leased_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
    :fence, fence),
    leased_until = IF(fence = :fence, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
        + :lease, leased_until);

SELECT leased_until, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_leader WHERE name = :name AND fence = :fence
