-- Hot, changing values are columns; cold ones are one JSON text each (see src/codec/row.rs).
-- Moments are milliseconds since 1970, ids of runs 16 bytes, unsigned numbers keep their bits.
-- Everything is scoped by project; a run's id is unique across projects.
-- Checks are written with OR: for IN, SQLite fills a temporary table at every single write.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- incarnation: high half of lease epochs. newest: latest moment stored. runs: how many there are.
INSERT INTO meta (name, value) VALUES ('incarnation', 1), ('newest', 0), ('runs', 0);

CREATE TABLE runs (
    run_id            BLOB PRIMARY KEY CHECK (length(run_id) = 16),
    project           TEXT NOT NULL,
    state             TEXT NOT NULL CHECK (
        state = 'CREATED' OR state = 'PLANNING' OR state = 'PLAN_FAILED' OR state = 'QUEUED' OR
        state = 'RUNNING' OR state = 'CANCEL_REQUESTED' OR state = 'SUCCESS' OR
        state = 'FAILED' OR state = 'CANCELED' OR state = 'TIMEOUT' OR state = 'REPORTED'),
    outcome           TEXT CHECK (
        outcome = 'SUCCESS' OR outcome = 'FAILED' OR outcome = 'CANCELED' OR outcome = 'TIMEOUT'),
    cause             TEXT,
    cancel            TEXT,
    created_at        INTEGER NOT NULL,
    queued_at         INTEGER,
    started_at        INTEGER,
    ended_at          INTEGER,
    jobs              INTEGER NOT NULL,
    live_jobs         INTEGER NOT NULL,
    required_failed   INTEGER NOT NULL,
    required_canceled INTEGER NOT NULL,
    -- Copied out of the header, for filters and for the idempotency key.
    repository        TEXT,
    git_ref           TEXT,
    commit_id         TEXT,
    idempotency_key   BLOB,
    header            TEXT NOT NULL
) WITHOUT ROWID;

-- What a start must bring back into memory; small however many runs have ended.
CREATE INDEX runs_live ON runs (run_id) WHERE ended_at IS NULL OR live_jobs > 0;
-- For retention.
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_repository ON runs (repository, run_id) WHERE repository IS NOT NULL;
CREATE INDEX runs_commit ON runs (commit_id, run_id) WHERE commit_id IS NOT NULL;
CREATE UNIQUE INDEX runs_key ON runs (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE jobs (
    run_id     BLOB NOT NULL REFERENCES runs (run_id),
    job        INTEGER NOT NULL,
    project    TEXT NOT NULL,
    name       TEXT NOT NULL,
    policy     TEXT NOT NULL,
    spec       BLOB NOT NULL CHECK (length(spec) = 32),
    dependents TEXT NOT NULL,
    waiting_on INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    resolution TEXT CHECK (
        resolution = 'SUCCEEDED' OR resolution = 'FAILED' OR resolution = 'CANCELED'),
    cause      TEXT,
    ended_at   INTEGER,
    PRIMARY KEY (run_id, job)
) WITHOUT ROWID;

-- An attempt with its latest lease. No index besides the key: a renewal touches this row alone.
CREATE TABLE attempts (
    run_id           BLOB NOT NULL,
    job              INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    project          TEXT NOT NULL,
    state            TEXT NOT NULL CHECK (
        state = 'CREATED' OR state = 'QUEUED' OR state = 'LEASED' OR state = 'STARTING' OR
        state = 'RUNNING' OR state = 'UPLOADING' OR state = 'SUCCEEDED' OR state = 'FAILED' OR
        state = 'CANCEL_REQUESTED' OR state = 'CANCELED' OR state = 'TIMED_OUT'),
    created_at       INTEGER NOT NULL,
    not_before       INTEGER NOT NULL,
    queued_at        INTEGER,
    order_key        INTEGER NOT NULL,
    ended_at         INTEGER,
    cause            TEXT,
    losses           INTEGER NOT NULL,
    dispatches       INTEGER NOT NULL,
    cancel           TEXT,
    report           TEXT,
    lease_number     INTEGER NOT NULL,
    cancel_told_at   INTEGER,
    progress         TEXT,
    lease_epoch      INTEGER,
    lease_nth        INTEGER,
    lease_token      BLOB,
    lease_state      TEXT CHECK (
        lease_state = 'GRANTED' OR lease_state = 'ACTIVE' OR lease_state = 'EXPIRED' OR
        lease_state = 'REVOKED' OR lease_state = 'COMPLETED' OR lease_state = 'CANCELED'),
    lease_principal  TEXT,
    lease_runner     TEXT,
    granted_at       INTEGER,
    ack_by           INTEGER,
    acknowledged_at  INTEGER,
    lease_ended_at   INTEGER,
    revocation       TEXT,
    closing_kind     TEXT CHECK (
        closing_kind = 'complete' OR closing_kind = 'cancel_ack'),
    closing_digest   BLOB,
    ttl              INTEGER,
    expires_at       INTEGER,
    heartbeat_seq    INTEGER,
    PRIMARY KEY (run_id, job, attempt),
    FOREIGN KEY (run_id, job) REFERENCES jobs (run_id, job)
) WITHOUT ROWID;

-- Leases that another one of the same attempt has followed.
CREATE TABLE past_leases (
    run_id           BLOB NOT NULL,
    job              INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    lease_epoch      INTEGER NOT NULL,
    project          TEXT NOT NULL,
    lease_nth        INTEGER NOT NULL,
    lease_token      BLOB NOT NULL,
    lease_state      TEXT NOT NULL CHECK (
        lease_state = 'EXPIRED' OR lease_state = 'REVOKED' OR lease_state = 'COMPLETED' OR
        lease_state = 'CANCELED'),
    lease_principal  TEXT NOT NULL,
    lease_runner     TEXT NOT NULL,
    granted_at       INTEGER NOT NULL,
    ack_by           INTEGER NOT NULL,
    acknowledged_at  INTEGER,
    lease_ended_at   INTEGER,
    revocation       TEXT,
    closing_kind     TEXT CHECK (
        closing_kind = 'complete' OR closing_kind = 'cancel_ack'),
    closing_digest   BLOB,
    ttl              INTEGER NOT NULL,
    expires_at       INTEGER NOT NULL,
    heartbeat_seq    INTEGER,
    PRIMARY KEY (run_id, job, attempt, lease_epoch),
    FOREIGN KEY (run_id, job, attempt) REFERENCES attempts (run_id, job, attempt)
) WITHOUT ROWID;

-- The exact text of each job's spec; jobs.spec is its SHA-256.
CREATE TABLE job_specs (
    run_id  BLOB NOT NULL,
    job     INTEGER NOT NULL,
    project TEXT NOT NULL,
    spec    TEXT NOT NULL,
    PRIMARY KEY (run_id, job),
    FOREIGN KEY (run_id, job) REFERENCES jobs (run_id, job)
) WITHOUT ROWID;

-- One accepted command each: the bytes that were hashed, versions 1, 2, 3 … of each run.
CREATE TABLE events (
    run_id  BLOB NOT NULL REFERENCES runs (run_id),
    version INTEGER NOT NULL CHECK (version > 0),
    project TEXT NOT NULL,
    at      INTEGER NOT NULL,
    hash    BLOB NOT NULL CHECK (length(hash) = 32),
    record  BLOB NOT NULL,
    PRIMARY KEY (run_id, version)
) WITHOUT ROWID;

-- Attempts that wait for a lease. The server keeps them in order in memory.
CREATE TABLE queue (
    run_id    BLOB NOT NULL,
    job       INTEGER NOT NULL,
    attempt   INTEGER NOT NULL,
    project   TEXT NOT NULL,
    match_key TEXT NOT NULL,
    order_key INTEGER NOT NULL,
    queued_at INTEGER NOT NULL,
    PRIMARY KEY (run_id, job, attempt),
    FOREIGN KEY (run_id, job, attempt) REFERENCES attempts (run_id, job, attempt)
) WITHOUT ROWID;

-- Retries that wait for their moment.
CREATE TABLE delayed (
    run_id     BLOB NOT NULL,
    job        INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    project    TEXT NOT NULL,
    not_before INTEGER NOT NULL,
    PRIMARY KEY (run_id, job, attempt),
    FOREIGN KEY (run_id, job, attempt) REFERENCES attempts (run_id, job, attempt)
) WITHOUT ROWID;

CREATE TABLE credentials (
    credential_id TEXT PRIMARY KEY,
    project       TEXT NOT NULL,
    name          TEXT NOT NULL,
    role          TEXT NOT NULL CHECK (
        role = 'runner' OR role = 'user' OR role = 'admin'),
    hash          BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER,
    revoked_at    INTEGER
) WITHOUT ROWID;

-- What is left of a run that retention deleted: where its chain of events ended.
CREATE TABLE tombstones (
    run_id     BLOB PRIMARY KEY,
    project    TEXT NOT NULL,
    version    INTEGER NOT NULL,
    hash       BLOB NOT NULL,
    ended_at   INTEGER NOT NULL,
    deleted_at INTEGER NOT NULL
) WITHOUT ROWID;
