-- abandon: complete deferred requests that nobody ran in time.
-- event: abandon
-- takes: limit snapshot
-- gives: state and now of each
-- why: by the store's clock. What a worker has just taken is locked, or no longer pending. The answer
--      is kept as long as the record's own terms say.
WITH due AS MATERIALIZED (
    SELECT identity AS which FROM semel_record
    WHERE duty = {duty.run} AND due_at <= (SELECT {now}) AND leased_until <= {now}
      AND terms IN (SELECT id FROM semel_terms)
    ORDER BY due_at LIMIT :limit {locked}
)
UPDATE semel_record
SET state = {completed}, snapshot = :snapshot, leased_until = NULL, request = NULL,
    forget_at = {now} + {retention} + {tombstone},
    duty = {duty.expire}, due_at = {now} + {retention}, reason = 'nobody ran it in time'
WHERE identity {chosen} AND state = {pending} AND leased_until <= {now}
RETURNING state, {now}
