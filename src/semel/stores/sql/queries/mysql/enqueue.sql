-- enqueue: write an effect into the outbox.
-- takes: key identity name payload order_key delay application
-- gives: now; no row when its key is there already, which is an error here
-- why: in the transaction that wants it. place gives the order in which they were written.
INSERT INTO semel_effect
    (key, identity, name, payload, order_key, state, created_at, due_at, application)
VALUES (:key, :identity, :name, :payload, :order_key, 'waiting', {now}, {now} + :delay,
        :application);
SELECT {now}
