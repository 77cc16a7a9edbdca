-- Repositories, with the sealed secret of their webhooks.
CREATE TABLE repositories (
    project    TEXT NOT NULL,
    name       TEXT NOT NULL,
    clone_url  TEXT NOT NULL,
    about      TEXT NOT NULL,
    version    INTEGER NOT NULL,
    key_id     TEXT NOT NULL,
    sealed     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL,
    PRIMARY KEY (project, name)
) WITHOUT ROWID;

-- The outbox: one row per run that somebody must be told about, written with the run.
CREATE TABLE reports (
    run_id  BLOB PRIMARY KEY CHECK (length(run_id) = 16),
    project TEXT NOT NULL,
    stage   INTEGER NOT NULL,
    tries   INTEGER NOT NULL,
    next_at INTEGER NOT NULL,
    why     TEXT NOT NULL
) WITHOUT ROWID;

-- Runs that waited for somebody's word, and got it.
CREATE TABLE approvals (
    run_id      BLOB PRIMARY KEY CHECK (length(run_id) = 16),
    project     TEXT NOT NULL,
    approved_by TEXT NOT NULL,
    approved_at INTEGER NOT NULL
) WITHOUT ROWID;

-- What the planner said about a run: reasons, or what is wrong.
CREATE TABLE plans (
    run_id  BLOB PRIMARY KEY CHECK (length(run_id) = 16),
    project TEXT NOT NULL,
    plan    TEXT NOT NULL
) WITHOUT ROWID;
