-- Repositories, with the sealed secret of their webhooks.
CREATE TABLE repositories (
    project text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    clone_url text COLLATE "C" NOT NULL,
    about text NOT NULL,
    version bigint NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    updated_by text NOT NULL,
    PRIMARY KEY (project, name)
);

-- The outbox: one row per run that somebody must be told about, written with the run.
CREATE TABLE reports (
    run_id uuid PRIMARY KEY,
    project text COLLATE "C" NOT NULL,
    stage bigint NOT NULL,
    tries bigint NOT NULL,
    next_at bigint NOT NULL,
    why text NOT NULL
);

-- Runs that waited for somebody's word, and got it.
CREATE TABLE approvals (
    run_id uuid PRIMARY KEY,
    project text COLLATE "C" NOT NULL,
    approved_by text NOT NULL,
    approved_at bigint NOT NULL
);

-- What the planner said about a run: reasons, or what is wrong.
CREATE TABLE plans (
    run_id uuid PRIMARY KEY,
    project text COLLATE "C" NOT NULL,
    plan text NOT NULL
);
