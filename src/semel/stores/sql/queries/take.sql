-- take: a worker begins a deferred request, under a new fence.
-- event: take
-- takes: identity seen fence lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: of two workers that saw the same record one burns the fence the other saw.
UPDATE semel_record
SET state = {in_progress}, fence = :fence, leased_until = {now} + :lease, reason = NULL,
    duty = CASE on_lapse WHEN {lapse.resume} THEN {duty.resume} ELSE {duty.lease} END, due_at = {now} + :lease
WHERE identity = :identity AND fence = :seen AND state = {pending}
RETURNING state, leased_until, {expires_at}, {now}
