-- Records, recipes and the list of migrations.
--
-- An ordinary rowid table with a unique index on the identity: rows carry snapshots of any size,
-- which would make the tree of a WITHOUT ROWID table deep and its random inserts slow.
CREATE TABLE semel_record (
    identity     BLOB PRIMARY KEY NOT NULL CHECK (length(identity) = 32),
    state        TEXT NOT NULL CHECK (state IN ('pending', 'in_progress', 'completed',
                                                'failed_retryable', 'unknown', 'expired')),
    fence        BLOB NOT NULL CHECK (length(fence) = 16),
    fingerprint  TEXT NOT NULL,
    fields       BLOB NOT NULL,
    tenant       TEXT NOT NULL,
    method       TEXT NOT NULL,
    path         TEXT NOT NULL,
    key          TEXT NOT NULL,
    on_lapse     TEXT NOT NULL CHECK (on_lapse IN ('unknown', 'release')),
    created_at   INTEGER NOT NULL,
    leased_until INTEGER,
    expires_at   INTEGER,
    forget_at    INTEGER,
    snapshot     BLOB,
    reason       TEXT,
    -- A lease that cannot end would hold its key for ever.
    CHECK (state <> 'in_progress' OR leased_until IS NOT NULL),
    -- An unsettled record never becomes free by time.
    CHECK (state NOT IN ('pending', 'in_progress', 'unknown')
           OR (expires_at IS NULL AND forget_at IS NULL)),
    -- An answer is kept as long as it is promised.
    CHECK (state <> 'completed' OR (snapshot IS NOT NULL AND expires_at IS NOT NULL))
) STRICT;

CREATE TABLE semel_recipe (
    route      TEXT PRIMARY KEY NOT NULL,
    recipe     TEXT NOT NULL,
    previous   TEXT,
    alive_until INTEGER
) STRICT;

CREATE TABLE semel_schema (
    version    INTEGER PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;
