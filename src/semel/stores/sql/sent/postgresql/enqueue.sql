-- Written by `python -m tools.queries` from queries/postgresql/enqueue.sql: change that file.
-- enqueue: write an effect into the outbox, and have the workers woken when that is committed.
-- takes: $1 key $2 identity $3 name $4 payload $5 order_key $6 delay $7 application
-- gives: now; no row when its key is there already
-- why: in the transaction that wants it. place gives the order in which they were written. Commits
--      that notify queue up for one lock of the server, so not each of them does: the first that
--      is written in a tenth of a second does, and whoever listens looks a second time soon after.
WITH written AS (
    INSERT INTO semel_effect
        (key, identity, name, payload, order_key, state, created_at, due_at, application)
    VALUES ($1, $2, $3, $4, $5, 'waiting',
           (extract(epoch from clock_timestamp()) * 1000000)::bigint,
           (extract(epoch from clock_timestamp()) * 1000000)::bigint + $6,
            $7)
    ON CONFLICT (key) DO NOTHING
    RETURNING created_at
)
SELECT created_at FROM written
WHERE CASE WHEN created_at / 100000 IS DISTINCT FROM
                (SELECT last.created_at / 100000 FROM semel_effect AS last
                 ORDER BY last.place DESC LIMIT 1)
           THEN pg_notify('semel_effect', '') IS NOT NULL
           ELSE true END
