-- Written by `python -m tools.queries` from queries/beat.sql: change that file.
-- beat: a worker is there.
-- takes: id application role does host pid version leads lease
-- gives: now
-- why: what it does may change, so all of it is written.
INSERT INTO semel_worker
    (id, application, role, does, host, pid, version, leads, seen_at, until)
VALUES (:id, :application, :role, :does, :host, :pid, :version, :leads, :now, :now + :lease)
ON CONFLICT (id) DO UPDATE
SET does = excluded.does, leads = excluded.leads, seen_at = excluded.seen_at,
    until = excluded.until
RETURNING :now
