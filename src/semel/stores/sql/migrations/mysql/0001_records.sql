-- Records, recipes, terms, the outbox, events of providers, leaders, the audit, and the list of migrations.
-- oldest: 1
--
-- Text that is compared is kept as bytes: every collation that MariaDB and MySQL share ignores
-- trailing blanks or the case, and would merge keys, tenants and names that are not the same.
-- Data definition commits by itself here: each statement can be repeated after a crash, and the table
-- that says that all is there comes last.
CREATE TABLE IF NOT EXISTS semel_record (
    identity     BINARY(32) NOT NULL PRIMARY KEY,
    state        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                 CHECK (state IN ('pending', 'in_progress', 'completed', 'failed_retryable',
                                  'unknown', 'expired')),
    fence        BINARY(16) NOT NULL,
    fingerprint  MEDIUMTEXT NOT NULL,
    fields       LONGBLOB NOT NULL,
    tenant       MEDIUMBLOB NOT NULL,
    method       MEDIUMTEXT NOT NULL,
    path         MEDIUMTEXT NOT NULL,
    `key`        MEDIUMTEXT NOT NULL,
    on_lapse     VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                 CHECK (on_lapse IN ('unknown', 'release', 'resume')),
    -- Of semel_terms. No foreign key: a claim would lock that row, and all claims share it.
    terms        BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    leased_until BIGINT,
    expires_at   BIGINT,
    forget_at    BIGINT,
    -- lease: the sweeper's; resume: the completer's; run: the worker's, and past the deadline the
    -- abandoner's; ask: the reconciler's; expire, forget: the reaper's.
    duty         VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                 CHECK (duty IN ('lease', 'resume', 'run', 'ask', 'expire', 'forget')),
    due_at       BIGINT,
    tries        INT NOT NULL DEFAULT 0,
    -- Only of a deferred request: how long it may wait to be run, and until when.
    patience     BIGINT,
    abandon_at   BIGINT,
    retired_at   BIGINT,
    resource     MEDIUMBLOB,
    request      LONGBLOB,
    journal      LONGBLOB,
    snapshot     LONGBLOB,
    reason       MEDIUMTEXT,
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
    CHECK (due_at IS NOT NULL OR state = 'unknown'),
    KEY semel_record_due (duty, due_at),
    KEY semel_record_resource (resource(64))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS semel_recipe (
    route       VARBINARY(1024) NOT NULL PRIMARY KEY,
    recipe      MEDIUMBLOB NOT NULL,
    previous    MEDIUMBLOB,
    alive_until BIGINT
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What records were promised under; named by 64 bits of a digest of all that is said.
CREATE TABLE IF NOT EXISTS semel_terms (
    id          BIGINT NOT NULL PRIMARY KEY,
    application VARBINARY(1024) NOT NULL,
    route       VARBINARY(1024) NOT NULL,
    retention   BIGINT NOT NULL,
    tombstone   BIGINT NOT NULL,
    said        MEDIUMTEXT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- due_at: when it may be taken (again); of a delivered effect, when it is forgotten; of a dead one
-- NULL.
CREATE TABLE IF NOT EXISTS semel_effect (
    place        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `key`        VARBINARY(1024) NOT NULL UNIQUE,
    identity     BINARY(32),
    application  VARBINARY(1024) NOT NULL,
    name         MEDIUMBLOB NOT NULL,
    payload      LONGBLOB NOT NULL,
    order_key    VARBINARY(1024),
    state        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                 CHECK (state IN ('waiting', 'delivered', 'dead')),
    fence        BINARY(16),
    tries        INT NOT NULL DEFAULT 0,
    created_at   BIGINT NOT NULL,
    due_at       BIGINT,
    leased_until BIGINT,
    delivered_at BIGINT,
    dead_at      BIGINT,
    provider_id  MEDIUMTEXT,
    error        MEDIUMTEXT,
    CHECK (due_at IS NOT NULL OR state = 'dead'),
    KEY semel_effect_due (state, due_at, place),
    KEY semel_effect_order (order_key, place)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS semel_event (
    source    VARBINARY(1024) NOT NULL,
    event     VARBINARY(1024) NOT NULL,
    forget_at BIGINT NOT NULL,
    PRIMARY KEY (source, event),
    KEY semel_event_forget (forget_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS semel_leader (
    name         VARBINARY(1024) NOT NULL PRIMARY KEY,
    fence        BINARY(16) NOT NULL,
    leased_until BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What people and evidence did to records: written with the act itself, and never deleted.
CREATE TABLE IF NOT EXISTS semel_audit (
    place        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at           BIGINT NOT NULL,
    verb         VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    actor        MEDIUMTEXT NOT NULL CHECK (actor <> ''),
    reason       MEDIUMTEXT NOT NULL CHECK (reason <> ''),
    identity     BINARY(32),
    subject      MEDIUMBLOB,
    state_before VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin,
    state_after  VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS semel_schema (
    version    INT NOT NULL PRIMARY KEY,
    name       MEDIUMTEXT NOT NULL,
    oldest     INT NOT NULL,
    applied_at BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
