-- lapse: the holder's time is up; unknown, or where the claim declared it failed_retryable, a
--        deferred request pending again.
-- event: lapse
-- event: lapse, declared release
-- event: lapse, declared release, back to the queue
-- takes: identity seen retention
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the fence stays: the late holder's completion is evidence. An open receipt stays with unknown.
--      A resumable one is not lapsed but resumed. sweep does the same for many.
UPDATE semel_record
SET state = CASE WHEN on_lapse <> {lapse.release} THEN {unknown}
                 WHEN patience IS NULL THEN {failed_retryable} ELSE {pending} END,
    duty = CASE WHEN on_lapse <> {lapse.release} THEN {duty.ask}
                WHEN patience IS NULL THEN {duty.forget} ELSE {duty.run} END,
    due_at = CASE WHEN on_lapse = {lapse.release} AND patience IS NULL THEN {now} + :retention
                  WHEN on_lapse = {lapse.release} AND abandon_at < {now} THEN abandon_at
                  ELSE {now} END,
    leased_until = CASE on_lapse WHEN {lapse.release} THEN abandon_at END,
    snapshot = CASE on_lapse WHEN {lapse.release} THEN NULL ELSE snapshot END,
    tries = NULL, reason = 'the lease ran out'
WHERE identity = :identity AND fence = :seen AND state = {in_progress} AND leased_until <= {now}
  AND on_lapse <> {lapse.resume}
RETURNING state, leased_until, {expires_at}, {now}
