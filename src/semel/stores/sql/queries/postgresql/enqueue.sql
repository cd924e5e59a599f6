-- enqueue: write an effect into the outbox, and wake the workers when that is committed.
-- takes: key identity name payload order_key delay
-- gives: now; no row when its key is there already
-- why: in the transaction that wants it. place gives the order in which they were written.
WITH written AS (
    INSERT INTO semel_effect
        (key, identity, name, payload, order_key, state, created_at, due_at)
    VALUES (:key, :identity, :name, :payload, :order_key, 'waiting', {now}, {now} + :delay)
    ON CONFLICT (key) DO NOTHING
    RETURNING {now} AS written_at
)
SELECT written_at FROM written WHERE pg_notify('semel_effect', '') IS NOT NULL
