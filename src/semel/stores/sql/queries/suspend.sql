-- suspend: it may have happened; only evidence decides from here.
-- event: suspend
-- takes: identity fence reason probe_after
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the fence stays, so that the holder's late result can still complete the record; there is no
--      expiry, so that it never becomes free by time. Nobody to be asked: due never, a dead letter.
UPDATE semel_record
SET state = {unknown}, leased_until = NULL, reason = :reason, tries = NULL, duty = {duty.ask},
    due_at = {now} + :probe_after
WHERE identity = :identity AND fence = :fence AND state = {in_progress}
RETURNING state, leased_until, {expires_at}, {now}
