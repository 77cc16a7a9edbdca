-- What a credential grants, beside its role, and the one-time tokens that new agents are let in
-- with. SQLite cannot widen a CHECK, so the table is made anew; it has few rows.

CREATE TABLE credentials_new (
    -- tok_…, or whom it stands for: cert:NAME, oidc:ISSUER:SUBJECT.
    credential_id TEXT PRIMARY KEY,
    project       TEXT NOT NULL,
    name          TEXT NOT NULL,
    role          TEXT NOT NULL CHECK (
        role = 'runner' OR role = 'user' OR role = 'admin' OR role = 'enrolment'),
    hash          BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER,
    revoked_at    INTEGER,
    pool          TEXT NOT NULL,
    -- Words with single spaces between them; among labels, * is any.
    zones         TEXT NOT NULL,
    labels        TEXT NOT NULL,
    -- The one agent that may use it.
    agent         TEXT,
    -- When a one-time token was used, for which agent, and when it was last shown again.
    used_at       INTEGER,
    used_by       TEXT,
    reused_at     INTEGER
) WITHOUT ROWID;

-- A token made before granted no zone and left labels to the agent; so it stays.
INSERT INTO credentials_new (credential_id, project, name, role, hash, created_at, expires_at,
    revoked_at, pool, zones, labels)
SELECT credential_id, project, name, role, hash, created_at, expires_at, revoked_at,
    'default', '', '*' FROM credentials;

DROP TABLE credentials;
ALTER TABLE credentials_new RENAME TO credentials;
