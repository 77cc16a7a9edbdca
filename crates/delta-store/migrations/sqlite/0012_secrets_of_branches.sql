-- A secret may be good for one branch only. The branch is part of the key, and a key cannot be
-- changed in place: the rows move, as they are. An empty branch means any, as before.
CREATE TABLE secrets_of_branches (
    project     TEXT NOT NULL,
    name        TEXT NOT NULL,
    repository  TEXT NOT NULL,
    branch      TEXT NOT NULL,
    environment TEXT NOT NULL,
    kind        TEXT NOT NULL,
    -- Rises with every write; part of what the row is sealed with.
    version     INTEGER NOT NULL,
    key_id      TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    updated_by  TEXT NOT NULL,
    sealed      BLOB NOT NULL,
    PRIMARY KEY (project, name, repository, branch, environment)
) WITHOUT ROWID;
INSERT INTO secrets_of_branches
    SELECT project, name, repository, '', environment, kind, version, key_id, created_at,
        updated_at, updated_by, sealed
    FROM secrets;
DROP TABLE secrets;
ALTER TABLE secrets_of_branches RENAME TO secrets;
