-- Written by `python -m tools.queries` from queries/mysql/enqueue.sql: change that file.
-- enqueue: write an effect into the outbox.
-- takes: key identity name payload order_key delay application
-- gives: now; no row when its key is there already, which is an error here
-- why: in the transaction that wants it. place gives the order in which they were written.
INSERT INTO semel_effect
    (`key`, identity, name, payload, order_key, state, created_at, due_at, application)
VALUES (:key, :identity, :name, :payload, :order_key, 'waiting',
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :delay,
        :application);

SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
