-- beat: a worker is there.
-- takes: id application role does host pid version leads lease
-- gives: now
-- why: what it does may change, so all of it is written.
INSERT INTO semel_worker
    (id, application, role, does, host, pid, version, leads, seen_at, until)
VALUES (:id, :application, :role, :does, :host, :pid, :version, :leads, {now}, {now} + :lease)
ON DUPLICATE KEY UPDATE does = :does, leads = :leads, seen_at = {now}, until = {now} + :lease;
SELECT {now}
