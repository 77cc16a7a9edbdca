-- Events are written at the table's end, wherever their run is: inside a tree of runs each of them
-- cost a page of its own, and one that is longer than a quarter of a page a second one.
CREATE TABLE events_in_their_order (
    run_id  BLOB NOT NULL REFERENCES runs (run_id),
    first   INTEGER NOT NULL CHECK (first > 0),
    project TEXT NOT NULL,
    at      INTEGER NOT NULL,
    hash    BLOB NOT NULL CHECK (length(hash) = 32),
    record  BLOB NOT NULL,
    records INTEGER NOT NULL CHECK (records > 0)
);
INSERT INTO events_in_their_order
    SELECT run_id, first, project, at, hash, record, records
    FROM events;
DROP TABLE events;
ALTER TABLE events_in_their_order RENAME TO events;
CREATE UNIQUE INDEX events_of_runs ON events (run_id, first);

-- A stage has come between telling a forge and being done.
UPDATE reports SET stage = 5 WHERE stage = 4;
