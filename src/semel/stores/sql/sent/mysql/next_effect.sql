-- Written by `python -m tools.queries` from queries/next_effect.sql: change that file.
-- next_effect: when the next effect may be taken.
-- takes: names application
-- gives: one row: the earliest due_at still to come, or NULL; now
-- why: a worker with nothing to do knows how long it may rest.
SELECT (SELECT min(due_at) FROM semel_effect
        WHERE state = 'waiting'
          AND due_at > (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
          AND name IN (:names)
          AND application = :application),
          TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
