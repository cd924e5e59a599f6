-- Records, recipes, terms, the outbox, events of providers, leaders, the audit, and the list of migrations.
-- oldest: 1
--
-- An ordinary rowid table with a unique index on the identity: rows carry snapshots of any size,
-- which would make the tree of a WITHOUT ROWID table deep and its random inserts slow.
-- Whoever looks after records finds them by (duty, due_at): whose turn it is, and from when on.
-- Its rules compare with one text after the other. For each list of three or more after IN, SQLite
-- would fill a temporary table anew for every row it checks: half of the cost of a write.
CREATE TABLE semel_record (
    identity     BLOB PRIMARY KEY NOT NULL CHECK (length(identity) = 32),
    state        TEXT NOT NULL CHECK (state = 'in_progress' OR state = 'completed'
                                      OR state = 'pending' OR state = 'failed_retryable'
                                      OR state = 'unknown' OR state = 'expired'),
    fence        BLOB NOT NULL CHECK (length(fence) = 16),
    fingerprint  TEXT NOT NULL,
    fields       BLOB NOT NULL,
    tenant       TEXT NOT NULL,
    method       TEXT NOT NULL,
    path         TEXT NOT NULL,
    key          TEXT NOT NULL,
    on_lapse     TEXT NOT NULL CHECK (on_lapse = 'unknown' OR on_lapse = 'release'
                                         OR on_lapse = 'resume'),
    -- Of semel_terms. No foreign key: a claim should not have to look there.
    terms        INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    leased_until INTEGER,
    expires_at   INTEGER,
    forget_at    INTEGER,
    -- lease: the sweeper's; resume: the completer's; run: the worker's, and past the deadline the
    -- abandoner's; ask: the reconciler's; expire, forget: the reaper's.
    duty         TEXT NOT NULL CHECK (duty = 'lease' OR duty = 'expire' OR duty = 'resume'
                                     OR duty = 'run' OR duty = 'ask' OR duty = 'forget'),
    due_at       INTEGER,
    tries        INTEGER NOT NULL DEFAULT 0,
    -- Only of a deferred request: how long it may wait to be run, and until when.
    patience     INTEGER,
    abandon_at   INTEGER,
    retired_at   INTEGER,
    resource     TEXT,
    request      BLOB,
    journal      BLOB,
    snapshot     BLOB,
    reason       TEXT,
    -- A lease that cannot end would hold its key for ever.
    CHECK (state NOT IN ('in_progress', 'pending') OR leased_until IS NOT NULL),
    -- An unsettled record never becomes free by time.
    CHECK ((state <> 'pending' AND state <> 'in_progress' AND state <> 'unknown')
           OR (expires_at IS NULL AND forget_at IS NULL)),
    -- An answer is kept as long as it is promised.
    CHECK (state <> 'completed' OR (snapshot IS NOT NULL AND expires_at IS NOT NULL)),
    -- What is to be run later can be run, and is given up some day.
    CHECK (state <> 'pending'
           OR (request IS NOT NULL AND patience IS NOT NULL AND abandon_at IS NOT NULL)),
    -- Only a dead letter is looked at by nobody.
    CHECK (due_at IS NOT NULL OR state = 'unknown')
) STRICT;

CREATE INDEX semel_record_due ON semel_record (duty, due_at);

CREATE INDEX semel_record_resource ON semel_record (substr(resource, 1, 64))
    WHERE resource IS NOT NULL;

CREATE TABLE semel_recipe (
    route       TEXT PRIMARY KEY NOT NULL,
    recipe      TEXT NOT NULL,
    previous    TEXT,
    alive_until INTEGER
) STRICT;

-- What records were promised under; named by 64 bits of a digest of all that is said.
CREATE TABLE semel_terms (
    id          INTEGER PRIMARY KEY NOT NULL,
    application TEXT NOT NULL,
    route       TEXT NOT NULL,
    retention   INTEGER NOT NULL,
    tombstone   INTEGER NOT NULL,
    said        TEXT NOT NULL
) STRICT;

-- due_at: when it may be taken (again); of a delivered effect, when it is forgotten; of a dead one
-- NULL.
CREATE TABLE semel_effect (
    place        INTEGER PRIMARY KEY NOT NULL,
    key          TEXT NOT NULL UNIQUE,
    identity     BLOB CHECK (length(identity) = 32),
    application  TEXT NOT NULL,
    name         TEXT NOT NULL,
    payload      BLOB NOT NULL,
    order_key    TEXT,
    state        TEXT NOT NULL CHECK (state IN ('waiting', 'delivered', 'dead')),
    fence        BLOB CHECK (length(fence) = 16),
    tries        INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    due_at       INTEGER,
    leased_until INTEGER,
    delivered_at INTEGER,
    dead_at      INTEGER,
    provider_id  TEXT,
    error        TEXT,
    CHECK (due_at IS NOT NULL OR state = 'dead')
) STRICT;

CREATE INDEX semel_effect_due ON semel_effect (state, due_at, place);

CREATE INDEX semel_effect_order ON semel_effect (order_key, place)
    WHERE state = 'waiting' AND order_key IS NOT NULL;

CREATE TABLE semel_event (
    source    TEXT NOT NULL,
    event     TEXT NOT NULL,
    forget_at INTEGER NOT NULL,
    PRIMARY KEY (source, event)
) STRICT;

CREATE INDEX semel_event_forget ON semel_event (forget_at);

CREATE TABLE semel_leader (
    name         TEXT PRIMARY KEY NOT NULL,
    fence        BLOB NOT NULL CHECK (length(fence) = 16),
    leased_until INTEGER NOT NULL
) STRICT;

-- What people and evidence did to records: written with the act itself, and never deleted.
CREATE TABLE semel_audit (
    place        INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at           INTEGER NOT NULL,
    verb         TEXT NOT NULL,
    actor        TEXT NOT NULL CHECK (actor <> ''),
    reason       TEXT NOT NULL CHECK (reason <> ''),
    identity     BLOB CHECK (length(identity) = 32),
    subject      TEXT,
    state_before TEXT,
    state_after  TEXT
) STRICT;

CREATE TABLE semel_schema (
    version    INTEGER PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL,
    oldest     INTEGER NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;
