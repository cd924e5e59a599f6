-- Records, recipes, terms, the outbox, events of providers, leaders, the audit,
-- notables, workers, and the list of migrations.
-- oldest: 1
--
-- Text that is compared is kept as bytes: every collation that MariaDB and MySQL share ignores
-- trailing blanks or the case, and would merge keys, tenants and names that are not the same.
-- Data definition commits by itself here: each statement can be repeated after a crash, and the table
-- that says that all is there comes last.
CREATE TABLE IF NOT EXISTS semel_record (
    identity     BINARY(32) NOT NULL PRIMARY KEY,
    fence        BINARY(16) NOT NULL,
    -- Short forms: of a digest, and of a UUID, NUL and its 16 bytes (core/stored/packed.py). NULL in a
    -- record that was erased.
    fingerprint  MEDIUMBLOB,
    -- Digests of the request, while its answer is kept.
    fields       LONGBLOB,
    tenant       MEDIUMBLOB NOT NULL,
    -- NULL: those of its route, in semel_terms.
    method       MEDIUMTEXT,
    path         MEDIUMTEXT,
    -- As the fingerprint; NULL in a tombstone.
    `key`        MEDIUMBLOB,
    created_at   BIGINT NOT NULL,
    -- Of semel_terms. No foreign key: a claim would lock that row, which all claims share.
    terms        BIGINT NOT NULL,
    -- 1 unknown, 2 release, 3 resume.
    on_lapse     TINYINT NOT NULL CHECK (on_lapse BETWEEN 1 AND 3),
    -- 1 pending, 2 in_progress, 3 completed, 4 failed_retryable, 5 unknown, 6 expired.
    state        TINYINT NOT NULL CHECK (state BETWEEN 1 AND 6),
    -- Who looks at it next: 1 lease: the sweeper; 2 resume: the completer; 3 run: the worker, and past
    -- the deadline the abandoner; 4 ask: the reconciler; 5 expire, 6 forget: the reaper.
    duty         TINYINT NOT NULL CHECK (duty BETWEEN 1 AND 6),
    -- How often a probe was asked.
    tries        INT,
    -- When somebody must look at it next. Of a completed record that is when it expires, of a released
    -- or expired one when it is forgotten. Only a dead letter has none.
    due_at       BIGINT,
    leased_until BIGINT,
    -- Only of a completed record: when it is forgotten.
    forget_at    BIGINT,
    -- Only of a deferred request: how long it may wait to be run, and until when.
    patience     BIGINT,
    abandon_at   BIGINT,
    retired_at   BIGINT,
    resource     MEDIUMBLOB,
    request      LONGBLOB,
    journal      LONGBLOB,
    reason       MEDIUMTEXT,
    snapshot     LONGBLOB,
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
    CHECK (due_at IS NOT NULL OR state = 5),
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

-- Records for people: words for numbers, times in UTC, and the place of a request spelled out.
CREATE OR REPLACE VIEW semel_records AS
SELECT
    LOWER(HEX(record.identity)) AS identity,
    CASE record.state WHEN 1 THEN 'pending' WHEN 2 THEN 'in_progress' WHEN 3 THEN 'completed'
        WHEN 4 THEN 'failed_retryable' WHEN 5 THEN 'unknown' WHEN 6 THEN 'expired' END AS state,
    CASE record.duty WHEN 1 THEN 'lease' WHEN 2 THEN 'resume' WHEN 3 THEN 'run'
        WHEN 4 THEN 'ask' WHEN 5 THEN 'expire' WHEN 6 THEN 'forget' END AS duty,
    CASE record.on_lapse WHEN 1 THEN 'unknown' WHEN 2 THEN 'release' WHEN 3 THEN 'resume'
        END AS on_lapse,
    CONVERT(terms.application USING utf8mb4) AS application,
    CONVERT(terms.route USING utf8mb4) AS route,
    CONVERT(record.tenant USING utf8mb4) AS tenant,
    COALESCE(record.method, SUBSTRING_INDEX(CONVERT(terms.route USING utf8mb4), ' ', 1)) AS method,
    CASE WHEN record.method IS NULL
        THEN SUBSTRING_INDEX(CONVERT(terms.route USING utf8mb4), ' ', -1)
        ELSE record.path END AS path,
    CASE WHEN SUBSTR(record.`key`, 1, 1) = x'00'
        THEN LOWER(CONCAT_WS('-', HEX(SUBSTR(record.`key`, 2, 4)), HEX(SUBSTR(record.`key`, 6, 2)),
            HEX(SUBSTR(record.`key`, 8, 2)), HEX(SUBSTR(record.`key`, 10, 2)),
            HEX(SUBSTR(record.`key`, 12))))
        ELSE COALESCE(CONVERT(record.`key` USING utf8mb4), '') END AS `key`,
    TIMESTAMPADD(MICROSECOND, record.created_at, '1970-01-01') AS created_at,
    TIMESTAMPADD(MICROSECOND, record.leased_until, '1970-01-01') AS leased_until,
    TIMESTAMPADD(MICROSECOND, CASE WHEN record.state = 3 THEN record.due_at END, '1970-01-01')
        AS expires_at,
    TIMESTAMPADD(MICROSECOND, CASE WHEN record.state IN (4, 6) THEN record.due_at
        ELSE record.forget_at END, '1970-01-01') AS forget_at,
    TIMESTAMPADD(MICROSECOND, record.due_at, '1970-01-01') AS due_at,
    TIMESTAMPADD(MICROSECOND, record.retired_at, '1970-01-01') AS retired_at,
    COALESCE(record.tries, 0) AS tries,
    record.reason,
    CONVERT(record.resource USING utf8mb4) AS resource,
    LENGTH(record.snapshot) AS answer_bytes
FROM semel_record AS record
LEFT JOIN semel_terms AS terms ON terms.id = record.terms;

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

-- What operators want to see later, and no record keeps; forgotten after a while. Nothing depends on
-- it.
CREATE TABLE IF NOT EXISTS semel_notable (
    place       BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at          BIGINT NOT NULL,
    forget_at   BIGINT NOT NULL,
    kind        VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    application VARBINARY(1024) NOT NULL,
    -- Empty: not known. So is the tenant.
    route       MEDIUMBLOB NOT NULL,
    tenant      MEDIUMBLOB NOT NULL,
    identity    BINARY(32),
    -- A small JSON object: never a key, a body or a header.
    detail      MEDIUMTEXT NOT NULL,
    -- How often it was seen in the same moment.
    times       BIGINT NOT NULL,
    KEY semel_notable_identity (identity, place),
    KEY semel_notable_forget (forget_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Who looks after the records, and when they were last seen.
CREATE TABLE IF NOT EXISTS semel_worker (
    id          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    application VARBINARY(1024) NOT NULL,
    role        MEDIUMTEXT NOT NULL,
    does        MEDIUMTEXT NOT NULL,
    host        MEDIUMTEXT NOT NULL,
    pid         BIGINT NOT NULL,
    version     MEDIUMTEXT NOT NULL,
    leads       TINYINT NOT NULL,
    seen_at     BIGINT NOT NULL,
    -- When it should be heard of again.
    until       BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS semel_schema (
    version    INT NOT NULL PRIMARY KEY,
    name       MEDIUMTEXT NOT NULL,
    oldest     INT NOT NULL,
    applied_at BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
