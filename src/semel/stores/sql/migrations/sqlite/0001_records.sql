-- Records, recipes, terms, the outbox, events of providers, leaders, the audit,
-- notables, workers, and the list of migrations.
-- oldest: 1
--
-- An ordinary rowid table with a unique index on the identity: rows carry snapshots of any size,
-- which would make the tree of a WITHOUT ROWID table deep and its random inserts slow.
-- Whoever looks after records finds them by (duty, due_at): whose turn it is, and from when on.
-- Its rules compare with one number after the other. For each list of three or more after IN, SQLite
-- would fill a temporary table anew for every row it checks: half of the cost of a write.
CREATE TABLE semel_record (
    identity     BLOB PRIMARY KEY NOT NULL CHECK (length(identity) = 32),
    fence        BLOB NOT NULL CHECK (length(fence) = 16),
    -- Short forms: of a digest, and of a UUID, NUL and its 16 bytes (core/stored/packed.py). NULL in a
    -- record that was erased.
    fingerprint  BLOB,
    -- Digests of the request, while its answer is kept.
    fields       BLOB,
    tenant       TEXT NOT NULL,
    -- Empty: those of its route, in semel_terms.
    method       TEXT NOT NULL,
    path         TEXT NOT NULL,
    -- As the fingerprint; NULL in a tombstone.
    key          BLOB,
    created_at   INTEGER NOT NULL,
    -- Of semel_terms. No foreign key: a claim should not have to look there.
    terms        INTEGER NOT NULL,
    -- 1 unknown, 2 release, 3 resume.
    on_lapse     INTEGER NOT NULL CHECK (on_lapse BETWEEN 1 AND 3),
    -- 1 pending, 2 in_progress, 3 completed, 4 failed_retryable, 5 unknown, 6 expired.
    state        INTEGER NOT NULL CHECK (state BETWEEN 1 AND 6),
    -- Who looks at it next: 1 lease: the sweeper; 2 resume: the completer; 3 run: the worker, and past
    -- the deadline the abandoner; 4 ask: the reconciler; 5 expire, 6 forget: the reaper.
    duty         INTEGER NOT NULL CHECK (duty BETWEEN 1 AND 6),
    -- How often a probe was asked.
    tries        INTEGER,
    -- When somebody must look at it next. Of a completed record that is when it expires, of a released
    -- or expired one when it is forgotten. Only a dead letter has none.
    due_at       INTEGER,
    leased_until INTEGER,
    -- Only of a completed record: when it is forgotten.
    forget_at    INTEGER,
    -- Only of a deferred request: how long it may wait to be run, and until when.
    patience     INTEGER,
    abandon_at   INTEGER,
    retired_at   INTEGER,
    resource     TEXT,
    request      BLOB,
    journal      BLOB,
    reason       TEXT,
    snapshot     BLOB,
    -- A lease that cannot end would hold its key for ever.
    CHECK ((state <> 1 AND state <> 2) OR leased_until IS NOT NULL),
    -- An unsettled record never becomes free by time.
    CHECK ((state <> 1 AND state <> 2 AND state <> 5)
           OR (forget_at IS NULL AND duty < 5)),
    -- An answer is kept as long as it is promised.
    CHECK (state <> 3 OR (snapshot IS NOT NULL AND forget_at IS NOT NULL AND duty = 5)),
    -- What is to be run later can be run, and is given up some day.
    CHECK (state <> 1
           OR (request IS NOT NULL AND patience IS NOT NULL AND abandon_at IS NOT NULL)),
    -- Only what was erased lets every request pass for the one that made it.
    CHECK (fingerprint IS NOT NULL OR state = 6),
    -- Only a dead letter is looked at by nobody.
    CHECK (due_at IS NOT NULL OR state = 5)
) STRICT;

CREATE INDEX semel_record_due ON semel_record (duty, due_at);

-- Those that nobody will ask about again. They have no time to stand by: without it all of them would
-- be sorted for each page of a list. Claims and completions are not in it. By its first columns SQLite
-- prefers it to the index above.
CREATE INDEX semel_record_dead ON semel_record (duty, due_at, identity) WHERE due_at IS NULL;

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

-- Records for people: words for numbers, times in UTC, and the place of a request spelled out.
CREATE VIEW semel_records AS
SELECT
    lower(hex(record.identity)) AS identity,
    CASE record.state WHEN 1 THEN 'pending' WHEN 2 THEN 'in_progress' WHEN 3 THEN 'completed'
        WHEN 4 THEN 'failed_retryable' WHEN 5 THEN 'unknown' WHEN 6 THEN 'expired' END AS state,
    CASE record.duty WHEN 1 THEN 'lease' WHEN 2 THEN 'resume' WHEN 3 THEN 'run'
        WHEN 4 THEN 'ask' WHEN 5 THEN 'expire' WHEN 6 THEN 'forget' END AS duty,
    CASE record.on_lapse WHEN 1 THEN 'unknown' WHEN 2 THEN 'release' WHEN 3 THEN 'resume'
        END AS on_lapse,
    terms.application AS application,
    terms.route AS route,
    record.tenant AS tenant,
    CASE WHEN record.method = '' THEN substr(terms.route, 1, instr(terms.route, ' ') - 1)
        ELSE record.method END AS method,
    CASE WHEN record.method = '' THEN substr(terms.route, instr(terms.route, ' ') + 1)
        ELSE record.path END AS path,
    CASE WHEN substr(record.key, 1, 1) = x'00'
        THEN lower(substr(hex(record.key), 3, 8) || '-' || substr(hex(record.key), 11, 4) || '-'
            || substr(hex(record.key), 15, 4) || '-' || substr(hex(record.key), 19, 4) || '-'
            || substr(hex(record.key), 23))
        ELSE COALESCE(CAST(record.key AS TEXT), '') END AS key,
    strftime('%Y-%m-%d %H:%M:%f', record.created_at / 1000000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%d %H:%M:%f', record.leased_until / 1000000.0, 'unixepoch') AS leased_until,
    strftime('%Y-%m-%d %H:%M:%f', CASE WHEN record.state = 3 THEN record.due_at
        END / 1000000.0, 'unixepoch') AS expires_at,
    strftime('%Y-%m-%d %H:%M:%f', CASE WHEN record.state IN (4, 6) THEN record.due_at
        ELSE record.forget_at END / 1000000.0, 'unixepoch') AS forget_at,
    strftime('%Y-%m-%d %H:%M:%f', record.due_at / 1000000.0, 'unixepoch') AS due_at,
    strftime('%Y-%m-%d %H:%M:%f', record.retired_at / 1000000.0, 'unixepoch') AS retired_at,
    COALESCE(record.tries, 0) AS tries,
    record.reason,
    record.resource AS resource,
    length(record.snapshot) AS answer_bytes
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms;

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

-- What operators want to see later, and no record keeps; forgotten after a while. Nothing depends on
-- it.
CREATE TABLE semel_notable (
    place       INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at          INTEGER NOT NULL,
    forget_at   INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    application TEXT NOT NULL,
    -- Empty: not known. So is the tenant.
    route       TEXT NOT NULL,
    tenant      TEXT NOT NULL,
    identity    BLOB CHECK (length(identity) = 32),
    -- A small JSON object: never a key, a body or a header.
    detail      TEXT NOT NULL,
    -- How often it was seen in the same moment.
    times       INTEGER NOT NULL
) STRICT;

CREATE INDEX semel_notable_identity ON semel_notable (identity, place)
    WHERE identity IS NOT NULL;

CREATE INDEX semel_notable_forget ON semel_notable (forget_at);

-- Who looks after the records, and when they were last seen.
CREATE TABLE semel_worker (
    id          TEXT PRIMARY KEY NOT NULL,
    application TEXT NOT NULL,
    role        TEXT NOT NULL,
    does        TEXT NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    version     TEXT NOT NULL,
    leads       INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    -- When it should be heard of again.
    until       INTEGER NOT NULL
) STRICT;

CREATE TABLE semel_schema (
    version    INTEGER PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL,
    oldest     INTEGER NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;
