-- Records, recipes, terms, the outbox, events of providers, leaders, the audit, and the list of migrations.
-- oldest: 1
--
-- Whoever looks after records finds them by (duty, due_at): whose turn it is, and from when on. That
-- completions write this index was measured against leaving it for the sweeper to write: see "One
-- index for all that is due" in docs/contributing/decisions.md. Renewals do leave it alone. The
-- fillfactor leaves room for the new versions on the page.
CREATE TABLE semel_record (
    identity     bytea PRIMARY KEY CHECK (octet_length(identity) = 32),
    state        text NOT NULL CHECK (state IN ('pending', 'in_progress', 'completed',
                                                'failed_retryable', 'unknown', 'expired')),
    fence        bytea NOT NULL CHECK (octet_length(fence) = 16),
    fingerprint  text NOT NULL,
    fields       bytea NOT NULL,
    tenant       text NOT NULL,
    method       text NOT NULL,
    path         text NOT NULL,
    key          text NOT NULL,
    on_lapse     text NOT NULL CHECK (on_lapse IN ('unknown', 'release', 'resume')),
    -- Of semel_terms. No foreign key: a claim would lock that row, which all claims share.
    terms        bigint NOT NULL,
    created_at   bigint NOT NULL,
    leased_until bigint,
    expires_at   bigint,
    forget_at    bigint,
    -- lease: the sweeper's; resume: the completer's; run: the worker's, and past the deadline the
    -- abandoner's; ask: the reconciler's; expire, forget: the reaper's.
    duty         text NOT NULL CHECK (duty IN ('lease', 'resume', 'run', 'ask', 'expire',
                                               'forget')),
    due_at       bigint,
    tries        integer NOT NULL DEFAULT 0,
    -- Only of a deferred request: how long it may wait to be run, and until when.
    patience     bigint,
    abandon_at   bigint,
    retired_at   bigint,
    resource     text,
    request      bytea,
    journal      bytea,
    snapshot     bytea,
    reason       text,
    -- A lease that cannot end would hold its key for ever.
    CHECK (state NOT IN ('in_progress', 'pending') OR leased_until IS NOT NULL),
    -- An unsettled record never becomes free by time.
    CHECK (state NOT IN ('pending', 'in_progress', 'unknown')
           OR (expires_at IS NULL AND forget_at IS NULL)),
    -- An answer is kept as long as it is promised.
    CHECK (state <> 'completed' OR (snapshot IS NOT NULL AND expires_at IS NOT NULL)),
    -- What is to be run later can be run, and is given up some day.
    CHECK (state <> 'pending'
           OR (request IS NOT NULL AND patience IS NOT NULL AND abandon_at IS NOT NULL)),
    -- Only a dead letter is looked at by nobody.
    CHECK (due_at IS NOT NULL OR state = 'unknown')
) WITH (fillfactor = 90);

CREATE INDEX semel_record_due ON semel_record (duty, due_at);

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

CREATE TABLE semel_schema (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    oldest     integer NOT NULL,
    applied_at bigint NOT NULL
);
