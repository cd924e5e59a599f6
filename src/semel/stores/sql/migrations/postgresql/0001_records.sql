-- Records, recipes, terms, the outbox, events of providers, leaders, the audit,
-- notables, workers, and the list of migrations.
-- oldest: 1
--
-- Whoever looks after records finds them by (duty, due_at): whose turn it is, and from when on. That
-- completions write this index was measured against leaving it for the sweeper to write: see "One
-- index for all that is due" in docs/contributing/decisions.md. Renewals do leave it alone.
-- What never changes comes first: of a new version on the same page the log has only what follows.
CREATE TABLE semel_record (
    created_at   bigint NOT NULL,
    -- Of semel_terms. No foreign key: a claim would lock that row, which all claims share.
    terms        bigint NOT NULL,
    identity     bytea PRIMARY KEY CHECK (octet_length(identity) = 32),
    fence        bytea NOT NULL CHECK (octet_length(fence) = 16),
    -- Short forms: of a digest, and of a UUID, NUL and its 16 bytes (core/stored/packed.py). NULL in a
    -- record that was erased.
    fingerprint  bytea,
    -- Digests of the request, while its answer is kept.
    fields       bytea,
    tenant       text NOT NULL,
    -- NULL: those of its route, in semel_terms.
    method       text,
    path         text,
    -- As the fingerprint; NULL in a tombstone.
    key          bytea,
    -- 1 unknown, 2 release, 3 resume.
    on_lapse     smallint NOT NULL CHECK (on_lapse BETWEEN 1 AND 3),
    -- 1 pending, 2 in_progress, 3 completed, 4 failed_retryable, 5 unknown, 6 expired.
    state        smallint NOT NULL CHECK (state BETWEEN 1 AND 6),
    -- Who looks at it next: 1 lease: the sweeper; 2 resume: the completer; 3 run: the worker, and past
    -- the deadline the abandoner; 4 ask: the reconciler; 5 expire, 6 forget: the reaper.
    duty         smallint NOT NULL CHECK (duty BETWEEN 1 AND 6),
    -- When somebody must look at it next. Of a completed record that is when it expires, of a released
    -- or expired one when it is forgotten. Only a dead letter has none.
    due_at       bigint,
    leased_until bigint,
    -- Only of a completed record: when it is forgotten.
    forget_at    bigint,
    -- Only of a deferred request: how long it may wait to be run, and until when.
    patience     bigint,
    abandon_at   bigint,
    retired_at   bigint,
    -- How often a probe was asked.
    tries        integer,
    resource     text,
    request      bytea,
    journal      bytea,
    reason       text,
    snapshot     bytea,
    -- A lease that cannot end would hold its key for ever.
    CHECK (state NOT IN (1, 2) OR leased_until IS NOT NULL),
    -- An unsettled record never becomes free by time.
    CHECK (state NOT IN (1, 2, 5)
           OR (forget_at IS NULL AND duty NOT IN (5, 6))),
    -- An answer is kept as long as it is promised.
    CHECK (state <> 3 OR (snapshot IS NOT NULL AND forget_at IS NOT NULL AND duty = 5)),
    -- What is to be run later can be run, and is given up some day.
    CHECK (state <> 1
           OR (request IS NOT NULL AND patience IS NOT NULL AND abandon_at IS NOT NULL)),
    -- Only what was erased lets every request pass for the one that made it.
    CHECK (fingerprint IS NOT NULL OR state = 6),
    -- Only a dead letter is looked at by nobody.
    CHECK (due_at IS NOT NULL OR state = 5)
);

CREATE INDEX semel_record_due ON semel_record (duty, due_at);

-- Those that nobody will ask about again. They have no time to stand by: without it all of them would
-- be sorted for each page of a list. Claims and completions are not in it.
CREATE INDEX semel_record_dead ON semel_record (identity) WHERE duty = 4 AND due_at IS NULL;

-- Few completions name a resource; a resource's name may be long.
CREATE INDEX semel_record_resource ON semel_record (substr(resource, 1, 64))
    WHERE resource IS NOT NULL;

-- Snapshots are compressed, where that pays, before they come here.
ALTER TABLE semel_record ALTER COLUMN snapshot SET STORAGE EXTERNAL;

CREATE TABLE semel_recipe (
    route       text PRIMARY KEY,
    recipe      text NOT NULL,
    previous    text,
    alive_until bigint
);

-- What records were promised under; named by 64 bits of a digest of all that is said.
CREATE TABLE semel_terms (
    id          bigint PRIMARY KEY,
    application text NOT NULL,
    route       text NOT NULL,
    retention   bigint NOT NULL,
    tombstone   bigint NOT NULL,
    said        text NOT NULL
);

-- Records for people: words for numbers, times in UTC, and the place of a request spelled out.
CREATE VIEW semel_records AS
SELECT
    encode(record.identity, 'hex') AS identity,
    CASE record.state WHEN 1 THEN 'pending' WHEN 2 THEN 'in_progress' WHEN 3 THEN 'completed'
        WHEN 4 THEN 'failed_retryable' WHEN 5 THEN 'unknown' WHEN 6 THEN 'expired' END AS state,
    CASE record.duty WHEN 1 THEN 'lease' WHEN 2 THEN 'resume' WHEN 3 THEN 'run'
        WHEN 4 THEN 'ask' WHEN 5 THEN 'expire' WHEN 6 THEN 'forget' END AS duty,
    CASE record.on_lapse WHEN 1 THEN 'unknown' WHEN 2 THEN 'release' WHEN 3 THEN 'resume'
        END AS on_lapse,
    terms.application AS application,
    terms.route AS route,
    record.tenant AS tenant,
    COALESCE(record.method, split_part(terms.route, ' ', 1)) AS method,
    CASE WHEN record.method IS NULL THEN split_part(terms.route, ' ', 2)
        ELSE record.path END AS path,
    CASE WHEN substr(record.key, 1, 1) = '\x00'::bytea
        THEN CAST(CAST(encode(substr(record.key, 2), 'hex') AS uuid) AS text)
        ELSE COALESCE(convert_from(record.key, 'UTF8'), '') END AS key,
    to_timestamp(record.created_at / 1000000.0) AS created_at,
    to_timestamp(record.leased_until / 1000000.0) AS leased_until,
    to_timestamp(CASE WHEN record.state = 3 THEN record.due_at END / 1000000.0) AS expires_at,
    to_timestamp(CASE WHEN record.state IN (4, 6) THEN record.due_at
        ELSE record.forget_at END / 1000000.0) AS forget_at,
    to_timestamp(record.due_at / 1000000.0) AS due_at,
    to_timestamp(record.retired_at / 1000000.0) AS retired_at,
    COALESCE(record.tries, 0) AS tries,
    record.reason,
    record.resource AS resource,
    octet_length(record.snapshot) AS answer_bytes
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms;

-- due_at: when it may be taken (again); of a delivered effect, when it is forgotten; of a dead one
-- NULL.
CREATE TABLE semel_effect (
    place        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key          text COLLATE "C" NOT NULL UNIQUE,
    identity     bytea CHECK (octet_length(identity) = 32),
    application  text NOT NULL,
    name         text NOT NULL,
    payload      bytea NOT NULL,
    order_key    text,
    state        text NOT NULL CHECK (state IN ('waiting', 'delivered', 'dead')),
    fence        bytea CHECK (octet_length(fence) = 16),
    tries        integer NOT NULL DEFAULT 0,
    created_at   bigint NOT NULL,
    due_at       bigint,
    leased_until bigint,
    delivered_at bigint,
    dead_at      bigint,
    provider_id  text,
    error        text,
    CHECK (due_at IS NOT NULL OR state = 'dead')
) WITH (fillfactor = 75);

CREATE INDEX semel_effect_due ON semel_effect (state, due_at, place);

CREATE INDEX semel_effect_order ON semel_effect (order_key, place)
    WHERE state = 'waiting' AND order_key IS NOT NULL;

CREATE TABLE semel_event (
    source    text NOT NULL,
    event     text NOT NULL,
    forget_at bigint NOT NULL,
    PRIMARY KEY (source, event)
);

CREATE INDEX semel_event_forget ON semel_event (forget_at);

CREATE TABLE semel_leader (
    name         text PRIMARY KEY,
    fence        bytea NOT NULL CHECK (octet_length(fence) = 16),
    leased_until bigint NOT NULL
);

-- What people and evidence did to records: written with the act itself, and never deleted.
CREATE TABLE semel_audit (
    place        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           bigint NOT NULL,
    verb         text NOT NULL,
    actor        text NOT NULL CHECK (actor <> ''),
    reason       text NOT NULL CHECK (reason <> ''),
    identity     bytea CHECK (octet_length(identity) = 32),
    subject      text,
    state_before text,
    state_after  text
);

-- What operators want to see later, and no record keeps; forgotten after a while. Nothing depends on
-- it.
CREATE TABLE semel_notable (
    place       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          bigint NOT NULL,
    forget_at   bigint NOT NULL,
    kind        text NOT NULL,
    application text NOT NULL,
    -- Empty: not known. So is the tenant.
    route       text NOT NULL,
    tenant      text NOT NULL,
    identity    bytea CHECK (octet_length(identity) = 32),
    -- A small JSON object: never a key, a body or a header.
    detail      text NOT NULL,
    -- How often it was seen in the same moment.
    times       bigint NOT NULL
);

CREATE INDEX semel_notable_identity ON semel_notable (identity, place)
    WHERE identity IS NOT NULL;

CREATE INDEX semel_notable_forget ON semel_notable (forget_at);

-- Who looks after the records, and when they were last seen.
CREATE TABLE semel_worker (
    id          text PRIMARY KEY,
    application text NOT NULL,
    role        text NOT NULL,
    does        text NOT NULL,
    host        text NOT NULL,
    pid         bigint NOT NULL,
    version     text NOT NULL,
    leads       smallint NOT NULL,
    seen_at     bigint NOT NULL,
    -- When it should be heard of again.
    until       bigint NOT NULL
);

CREATE TABLE semel_schema (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    oldest     integer NOT NULL,
    applied_at bigint NOT NULL
);
