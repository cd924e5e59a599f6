-- Written by `python -m tools.queries` from queries/read_effect.sql: change that file.
-- read_effect: how it is with an effect.
-- takes: key
-- gives: state, fence, leased_until, now, always exactly one row; state is NULL when there is none
-- why: follows a write that changed nothing, to tell "already done" from "another has it".
SELECT effect.state, effect.fence, effect.leased_until,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM (SELECT 1 AS one) AS here
LEFT JOIN semel_effect AS effect ON effect.`key` = :key
