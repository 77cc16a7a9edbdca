-- Secrets, sealed by the server: the file holds no key. An empty repository or environment means
-- any. Which key a row is sealed with is named, so that keys can be changed one after the other.
CREATE TABLE secrets (
    project     TEXT NOT NULL,
    name        TEXT NOT NULL,
    repository  TEXT NOT NULL,
    environment TEXT NOT NULL,
    kind        TEXT NOT NULL,
    -- Rises with every write; part of what the row is sealed with.
    version     INTEGER NOT NULL,
    key_id      TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    updated_by  TEXT NOT NULL,
    sealed      BLOB NOT NULL,
    PRIMARY KEY (project, name, repository, environment)
) WITHOUT ROWID;
