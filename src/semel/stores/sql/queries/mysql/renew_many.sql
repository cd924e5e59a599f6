-- renew_many: renew, for many records at once.
-- event: renew
-- takes: identity fence lease
-- gives: identity, state, leased_until, expires_at and now of each that was renewed, in any order
-- why: as complete_many. What has more than half of its lease before it was renewed just now: nobody
--      asks so early.
UPDATE semel_record FORCE INDEX (PRIMARY)
SET leased_until = {now} + CAST(ELT(FIELD(identity, :identity), :lease) AS SIGNED),
    due_at = CASE duty WHEN {duty.lease} THEN due_at
             ELSE {now} + CAST(ELT(FIELD(identity, :identity), :lease) AS SIGNED) END
WHERE identity IN (:identity) AND fence = ELT(FIELD(identity, :identity), :fence)
  AND state = {in_progress} AND leased_until > {now};
SELECT identity, state, leased_until, {expires_at}, {now}
FROM semel_record
WHERE identity IN (:identity) AND fence = ELT(FIELD(identity, :identity), :fence)
  AND state = {in_progress}
  AND leased_until > {now} + CAST(ELT(FIELD(identity, :identity), :lease) AS SIGNED) DIV 2
