-- Secrets, sealed by the servers: the database holds no key. An empty repository or environment
-- means any. Which key a row is sealed with is named, so that keys can be changed one after the
-- other.
CREATE TABLE secrets (
    project text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    repository text COLLATE "C" NOT NULL,
    environment text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    -- Rises with every write; part of what the row is sealed with.
    version bigint NOT NULL,
    key_id text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    updated_by text NOT NULL,
    sealed bytea NOT NULL,
    PRIMARY KEY (project, name, repository, environment)
);
