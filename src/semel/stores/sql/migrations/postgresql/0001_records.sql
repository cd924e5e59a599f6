-- Records, recipes and the list of migrations.
--
-- The identity's index is the only one: any index on state, lease or expiry would turn every
-- completion into a non-HOT update. The fillfactor leaves room for the new versions on the page.
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
    on_lapse     text NOT NULL CHECK (on_lapse IN ('unknown', 'release')),
    created_at   bigint NOT NULL,
    leased_until bigint,
    expires_at   bigint,
    forget_at    bigint,
    snapshot     bytea,
    reason       text,
    -- A lease that cannot end would hold its key for ever.
    CHECK (state <> 'in_progress' OR leased_until IS NOT NULL),
    -- An unsettled record never becomes free by time.
    CHECK (state NOT IN ('pending', 'in_progress', 'unknown')
           OR (expires_at IS NULL AND forget_at IS NULL)),
    -- An answer is kept as long as it is promised.
    CHECK (state <> 'completed' OR (snapshot IS NOT NULL AND expires_at IS NOT NULL))
) WITH (fillfactor = 75);

-- Snapshots are compressed, where that pays, before they come here.
ALTER TABLE semel_record ALTER COLUMN snapshot SET STORAGE EXTERNAL;

CREATE TABLE semel_recipe (
    route      text PRIMARY KEY,
    recipe     text NOT NULL,
    previous   text,
    alive_until bigint
);

CREATE TABLE semel_schema (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at bigint NOT NULL
);
