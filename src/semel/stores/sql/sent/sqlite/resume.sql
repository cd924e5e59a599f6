-- Written by `python -m tools.queries` from queries/resume.sql: change that file.
-- resume: go on with a resumable operation whose holder's time is up, under a new fence.
-- event: lapse, declared resume
-- takes: identity seen fence lease
-- gives: state, leased_until, expires_at, now; no row when refused
-- why: the old holder may only be slow; its fence is burnt before anybody goes on.
UPDATE semel_record
SET fence = :fence, leased_until = :now + :lease, duty = 2 /* resume */, due_at = :now + :lease,
    snapshot = NULL, reason = NULL
WHERE identity = :identity AND fence = :seen AND state = 2 /* in_progress */
  AND leased_until <= :now
  AND on_lapse = 3 /* resume */
RETURNING state, leased_until, CASE WHEN state = 3 /* completed */ THEN due_at END, :now
