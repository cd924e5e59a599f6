-- sweep: lapse, for many; and move on what was renewed or completed since it was claimed.
-- event: lapse
-- event: lapse, declared release
-- event: lapse, declared release, back to the queue
-- takes: limit retention
-- gives: state and now of each record it looked at; in_progress or completed: it was only moved on
-- why: requests leave duty and due_at alone, so here they catch up, many in one statement and at
--      most once for each lease. Nobody waits for it: what a request has locked is left for the next
--      round. Its fate is decided once: a lease must not end between two columns.
WITH due AS MATERIALIZED (
    SELECT identity AS which,
           CASE WHEN state <> 'in_progress' OR leased_until > (SELECT {now}) THEN NULL
                WHEN on_lapse <> 'release' THEN 'unknown'
                WHEN patience IS NULL THEN 'failed_retryable' ELSE 'pending' END AS fate
    FROM semel_record
    WHERE duty = 'lease' AND due_at <= (SELECT {now})
    ORDER BY due_at LIMIT :limit {locked}
)
UPDATE semel_record
SET state = COALESCE(fate, state),
    duty = CASE COALESCE(fate, state) WHEN 'unknown' THEN 'ask' WHEN 'failed_retryable' THEN 'forget'
                WHEN 'pending' THEN 'run' WHEN 'completed' THEN 'expire' ELSE 'lease' END,
    due_at = CASE WHEN fate IS NULL THEN COALESCE(leased_until, expires_at)
                  WHEN fate = 'failed_retryable' THEN {now} + :retention ELSE {now} END,
    forget_at = CASE fate WHEN 'failed_retryable' THEN {now} + :retention ELSE forget_at END,
    leased_until = CASE WHEN fate IS NULL THEN leased_until
                        WHEN fate = 'pending' THEN abandon_at END,
    snapshot = CASE WHEN fate IN ('failed_retryable', 'pending') THEN NULL ELSE snapshot END,
    tries = CASE WHEN fate IS NULL THEN tries ELSE 0 END,
    reason = CASE WHEN fate IS NULL THEN reason ELSE 'the lease ran out' END
FROM due
WHERE identity = which AND state IN ('in_progress', 'completed')
RETURNING state, {now}
