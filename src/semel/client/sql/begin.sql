-- begin: write a call down, before anything of it is sent.
-- takes: method url key name created_at fingerprint omitted headers body held_by held_until seal
-- gives: its row; nothing when the key is there already
-- why: the one who finds nothing given looks at what is there.
INSERT INTO call (method, url, key, name, created_at, fingerprint, omitted, headers, body,
                  held_by, held_until, seal)
VALUES (:method, :url, :key, :name, :created_at, :fingerprint, :omitted, :headers, :body,
        :held_by, :held_until, :seal)
ON CONFLICT (method, url, key) DO NOTHING
RETURNING id
