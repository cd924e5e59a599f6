-- Written by `python -m tools.queries` from queries/mysql/renew_many.sql: change that file.
-- renew_many: renew, for many records at once.
-- event: renew
-- takes: identity fence lease
-- gives: identity, state, leased_until, expires_at and now of each that was renewed, in any order
-- why: as complete_many. What has more than half of its lease before it was renewed just now: nobody
--      asks so early.
UPDATE semel_record FORCE INDEX (PRIMARY)
SET leased_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + CAST(ELT(FIELD(identity, :identity), :lease) AS SIGNED),
    due_at = CASE duty WHEN 1 /* lease */ THEN due_at
             ELSE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
                 + CAST(ELT(FIELD(identity, :identity), :lease) AS SIGNED) END
WHERE identity IN (:identity) AND fence = ELT(FIELD(identity, :identity), :fence)
  AND state = 2 /* in_progress */
  AND leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

SELECT identity, state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record
WHERE identity IN (:identity) AND fence = ELT(FIELD(identity, :identity), :fence)
  AND state = 2 /* in_progress */
  AND leased_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
      + CAST(ELT(FIELD(identity, :identity), :lease) AS SIGNED) DIV 2
