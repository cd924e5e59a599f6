-- Written by `python -m tools.queries` from queries/mysql/beat.sql: change that file.
-- beat: a worker is there.
-- takes: id application role does host pid version leads lease
-- gives: now
-- why: what it does may change, so all of it is written.
INSERT INTO semel_worker
    (id, application, role, does, host, pid, version, leads, seen_at, until)
VALUES (:id, :application, :role, :does, :host, :pid, :version, :leads,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease)
ON DUPLICATE KEY UPDATE does = :does, leads = :leads,
seen_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease;

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
