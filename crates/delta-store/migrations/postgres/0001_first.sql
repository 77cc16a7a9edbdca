-- The first schema. Everything is locked by its run: whoever holds the row lock on a run may write
-- any row of that run, in any table.
--
-- Unsigned numbers are bigint; moments are milliseconds since 1970; JSON is text in the encoding of
-- the store's codec, which writes NUL as an escape (jsonb would refuse it).
--
-- No index may name a column that a heartbeat changes: such updates must be HOT.

CREATE TABLE store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    incarnation bigint NOT NULL CHECK (incarnation BETWEEN 1 AND 2147483647)
);
INSERT INTO store (incarnation) VALUES (1);

CREATE TABLE runs (
    project text COLLATE "C" NOT NULL,
    id uuid PRIMARY KEY,
    header text NOT NULL,
    repository text COLLATE "C",
    git_ref text COLLATE "C",
    commit text COLLATE "C",
    idempotency_key bytea,
    state text COLLATE "C" NOT NULL CHECK (state IN (
        'CREATED', 'PLANNING', 'PLAN_FAILED', 'QUEUED', 'RUNNING', 'CANCEL_REQUESTED',
        'SUCCESS', 'FAILED', 'CANCELED', 'TIMEOUT', 'REPORTED')),
    outcome text COLLATE "C" CHECK (outcome IN ('SUCCESS', 'FAILED', 'CANCELED', 'TIMEOUT')),
    cause text COLLATE "C",
    cancel text,
    created_at bigint NOT NULL,
    queued_at bigint,
    started_at bigint,
    ended_at bigint,
    jobs bigint NOT NULL,
    live_jobs bigint NOT NULL CHECK (live_jobs BETWEEN 0 AND jobs),
    required_failed bigint NOT NULL,
    required_canceled bigint NOT NULL,
    -- One index serves the sweeper and retention: a moment before which a run is not due, or when
    -- it ended. The start of a run changes due_at alone.
    ended boolean NOT NULL,
    due_at bigint,
    moment bigint
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX runs_idempotency_key ON runs (idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_moment ON runs (ended, moment) WHERE moment IS NOT NULL;
CREATE INDEX runs_repository ON runs (project, repository, id) WHERE repository IS NOT NULL;
CREATE INDEX runs_commit ON runs (project, commit) WHERE commit IS NOT NULL;

CREATE TABLE jobs (
    project text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    n bigint NOT NULL,
    name text NOT NULL,
    policy text NOT NULL,
    match_key text COLLATE "C" NOT NULL,
    spec_digest bytea NOT NULL CHECK (length(spec_digest) = 32),
    dependents text NOT NULL,
    waiting_on bigint NOT NULL,
    attempts bigint NOT NULL,
    resolution text COLLATE "C" CHECK (resolution IN ('SUCCEEDED', 'FAILED', 'CANCELED')),
    cause text COLLATE "C",
    ended_at bigint,
    spec bytea,
    PRIMARY KEY (run_id, n)
) WITH (fillfactor = 70);

-- The latest lease's columns are in the attempt's row: a heartbeat changes one row, and most of
-- every page is kept free so that its new version lies beside the old one (HOT). Two thirds, since
-- a row is almost twice as wide once it has a lease.
CREATE TABLE attempts (
    project text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    job bigint NOT NULL,
    n bigint NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN (
        'CREATED', 'QUEUED', 'LEASED', 'STARTING', 'RUNNING', 'UPLOADING', 'SUCCEEDED', 'FAILED',
        'CANCEL_REQUESTED', 'CANCELED', 'TIMED_OUT')),
    created_at bigint NOT NULL,
    not_before bigint NOT NULL,
    queued_at bigint,
    order_key bigint NOT NULL,
    ended_at bigint,
    cause text COLLATE "C",
    losses bigint NOT NULL,
    dispatches bigint NOT NULL,
    cancel text,
    report text,
    leases bigint NOT NULL,
    cancel_told_at bigint,
    progress text,
    lease_epoch bigint,
    lease_token bytea CHECK (length(lease_token) = 32),
    lease_state text COLLATE "C" CHECK (lease_state IN (
        'GRANTED', 'ACTIVE', 'EXPIRED', 'REVOKED', 'COMPLETED', 'CANCELED')),
    lease_principal text COLLATE "C",
    lease_runner text COLLATE "C",
    lease_granted_at bigint,
    lease_ack_by bigint,
    lease_acknowledged_at bigint,
    lease_ended_at bigint,
    lease_revocation text COLLATE "C",
    lease_closing text COLLATE "C" CHECK (lease_closing IN ('complete', 'cancel_ack')),
    lease_closing_digest bytea,
    lease_ttl bigint,
    lease_expires_at bigint,
    lease_heartbeat_seq bigint,
    PRIMARY KEY (run_id, job, n),
    CHECK ((lease_epoch IS NULL) = (lease_state IS NULL))
) WITH (fillfactor = 33, autovacuum_vacuum_scale_factor = 0.05);

-- Leases that a newer one of the same attempt replaced; written once.
CREATE TABLE past_leases (
    project text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    job bigint NOT NULL,
    n bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    lease_token bytea NOT NULL CHECK (length(lease_token) = 32),
    lease_state text COLLATE "C" NOT NULL CHECK (lease_state IN (
        'EXPIRED', 'REVOKED', 'COMPLETED', 'CANCELED')),
    lease_principal text COLLATE "C" NOT NULL,
    lease_runner text COLLATE "C" NOT NULL,
    lease_granted_at bigint NOT NULL,
    lease_ack_by bigint NOT NULL,
    lease_acknowledged_at bigint,
    lease_ended_at bigint,
    lease_revocation text COLLATE "C",
    lease_closing text COLLATE "C",
    lease_closing_digest bytea,
    lease_ttl bigint NOT NULL,
    lease_expires_at bigint NOT NULL,
    lease_heartbeat_seq bigint,
    PRIMARY KEY (run_id, job, n, lease_epoch)
);

-- Who holds a live lease. The key enforces one live lease per runner (RP-9, SM-45) between writers
-- that cannot see each other; the sweeper walks this table. A partial unique index on attempts
-- would do the same, but it would make grants and completions non-HOT, and it would refuse a batch
-- in which a runner completes one attempt and is granted the next, since rows are checked one by
-- one in no order we control.
CREATE TABLE holders (
    project text COLLATE "C" NOT NULL,
    principal text COLLATE "C" NOT NULL,
    runner text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    job bigint NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (principal, runner)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Attempts that wait for a lease. Rows live briefly: vacuum comes by count, not by share.
CREATE TABLE queue (
    project text COLLATE "C" NOT NULL,
    match_key text COLLATE "C" NOT NULL,
    order_key bigint NOT NULL,
    run_id uuid NOT NULL,
    job bigint NOT NULL,
    n bigint NOT NULL,
    queued_at bigint NOT NULL,
    PRIMARY KEY (match_key, order_key, run_id, job, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Retries that wait for their delay.
CREATE TABLE delayed (
    project text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    job bigint NOT NULL,
    n bigint NOT NULL,
    not_before bigint NOT NULL,
    PRIMARY KEY (run_id, job, n)
);
CREATE INDEX delayed_not_before ON delayed (not_before);

-- Accepted commands, exactly as they were hashed. The key is the second wall: two writers can
-- never both write version n of a run.
CREATE TABLE events (
    project text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    version bigint NOT NULL CHECK (version > 0),
    at bigint NOT NULL,
    hash bytea NOT NULL CHECK (length(hash) = 32),
    bytes bytea NOT NULL,
    PRIMARY KEY (run_id, version)
);
-- A few bytes per 128 pages: enough to find the newest moment without reading history.
CREATE INDEX events_at ON events USING brin (at) WITH (autosummarize = on);

-- What is left of a run that retention deleted.
CREATE TABLE tombstones (
    project text COLLATE "C" NOT NULL,
    run_id uuid PRIMARY KEY,
    version bigint NOT NULL,
    hash bytea NOT NULL
);

CREATE TABLE credentials (
    project text COLLATE "C" NOT NULL,
    id text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    role text COLLATE "C" NOT NULL CHECK (role IN ('runner', 'user', 'admin')),
    hash bytea NOT NULL UNIQUE CHECK (length(hash) = 32),
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint
);
