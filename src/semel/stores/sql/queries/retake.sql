-- retake: start a released record again under a new fence.
-- event: retake
-- takes: identity seen fence lease on_lapse
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: due_at is no longer when it is forgotten: a record in progress never becomes free by time.
--      Request and journal stay: the retry is the same request, and goes on where the last run
--      ended. The patience of a deferred one begins anew.
UPDATE semel_record
SET state = {in_progress}, fence = :fence, leased_until = {now} + :lease,
    on_lapse = CAST(:on_lapse AS smallint),
    duty = CASE CAST(:on_lapse AS smallint)
           WHEN {lapse.resume} THEN {duty.resume} ELSE {duty.lease} END,
    due_at = {now} + :lease, abandon_at = {now} + patience,
    snapshot = NULL, reason = NULL
WHERE identity = :identity AND fence = :seen AND state = {failed_retryable}
RETURNING state, leased_until, {expires_at}, {now}
