-- begin: write a call, before anything of it is sent.
-- takes: method url key name created_at fingerprint terms omitted headers body held_by held_until seal
-- gives: its row; nothing when the key is there already
-- why: when nothing is given, the caller reads the row that is there.
INSERT INTO call (method, url, key, name, created_at, fingerprint, terms, omitted, headers,
                  body, held_by, held_until, seal)
VALUES (:method, :url, :key, :name, :created_at, :fingerprint, :terms, :omitted, :headers,
        :body, :held_by, :held_until, :seal)
ON CONFLICT (method, url, key) DO NOTHING
RETURNING id
