-- Agents that have registered. What an agent says of itself is one JSON text; whether it is there
-- now is known in memory, and seen_at is written once a minute at most.
CREATE TABLE agents (
    agent_id   TEXT PRIMARY KEY,
    project    TEXT NOT NULL,
    -- The credential the id belongs to, and the hash of the secret that tells agents with one
    -- credential apart.
    principal  TEXT NOT NULL,
    resume     BLOB CHECK (resume IS NULL OR length(resume) = 32),
    -- The most slots it has had: where its leases are looked for.
    slots      INTEGER NOT NULL,
    about      TEXT NOT NULL,
    -- Its newest session, on whichever server: older ones end.
    session    INTEGER NOT NULL,
    -- Set while it is to take no work.
    drain      TEXT,
    created_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    revoked_at INTEGER
) WITHOUT ROWID;
