-- Agents that have registered. What an agent says of itself is one JSON text; whether it is there
-- now is known in memory, and seen_at is written once a minute at most.
CREATE TABLE agents (
    project text COLLATE "C" NOT NULL,
    id text COLLATE "C" PRIMARY KEY,
    -- The credential the id belongs to, and the hash of the secret that tells agents with one
    -- credential apart.
    principal text COLLATE "C" NOT NULL,
    resume bytea CHECK (length(resume) = 32),
    -- The most slots it has had: where its leases are looked for.
    slots bigint NOT NULL,
    about text NOT NULL,
    -- Its newest session, on whichever server: older ones end.
    session bigint NOT NULL,
    -- Set while it is to take no work.
    drain text,
    created_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    revoked_at bigint
);
