-- settle_call: evidence says that an operation's call happened; it can be resumed with its result.
-- event: settle: its call happened
-- audits: settle in_progress
-- takes: identity seen fence journal evidence
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the lease is past from the start: whoever comes next, a request or the completer, resumes it.
UPDATE semel_record
SET state = {in_progress}, fence = :fence, journal = :journal, leased_until = {now},
    duty = {duty.resume}, due_at = {now}, tries = NULL, snapshot = NULL, reason = :evidence
WHERE identity = :identity AND fence = :seen AND state = {unknown} AND on_lapse = {lapse.resume}
RETURNING state, leased_until, {expires_at}, {now}
