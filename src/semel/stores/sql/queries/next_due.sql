-- next_due: when the next record becomes somebody's work.
-- takes: duty
-- gives: one row: the earliest due_at still to come, or NULL; now
-- why: a worker with nothing to do knows how long it may rest.
SELECT (SELECT min(due_at) FROM semel_record WHERE duty = :duty AND due_at > (SELECT {now})), {now}
