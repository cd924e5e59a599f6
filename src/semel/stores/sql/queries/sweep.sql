-- sweep: lapse, for many.
-- event: lapse
-- event: lapse, declared release
-- event: lapse, declared release, back to the queue
-- takes: limit
-- gives: state and now of each
-- why: nobody waits for it: what a request has locked is left for the next round. Resumable ones are
--      of another duty. What was renewed since was put off before. For how long a released one is
--      remembered say its own terms; where they are missing its next request lapses it.
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record {by_due}
    WHERE duty = {duty.lease} AND due_at <= (SELECT {now}) AND leased_until <= {now}
      AND (on_lapse <> {lapse.release} OR patience IS NOT NULL
           OR terms IN (SELECT id FROM semel_terms))
    ORDER BY due_at LIMIT :limit {locked}
)
UPDATE semel_record
SET state = CASE WHEN on_lapse <> {lapse.release} THEN {unknown}
                 WHEN patience IS NULL THEN {failed_retryable} ELSE {pending} END,
    duty = CASE WHEN on_lapse <> {lapse.release} THEN {duty.ask}
                WHEN patience IS NULL THEN {duty.forget} ELSE {duty.run} END,
    due_at = CASE WHEN on_lapse = {lapse.release} AND patience IS NULL THEN {now} + {retention}
                  WHEN on_lapse = {lapse.release} AND abandon_at < {now} THEN abandon_at
                  ELSE {now} END,
    leased_until = CASE on_lapse WHEN {lapse.release} THEN abandon_at END,
    snapshot = CASE on_lapse WHEN {lapse.release} THEN NULL ELSE snapshot END,
    tries = NULL, reason = 'the lease ran out'
WHERE identity {chosen} AND state = {in_progress} AND leased_until <= {now}
RETURNING state, {now}
