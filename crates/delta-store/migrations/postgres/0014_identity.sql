-- The name of this store, drawn when it is made, so that another one in its place is not taken for
-- it; and how often somebody tried whether anything can be written.
ALTER TABLE store
    ADD COLUMN identity bigint NOT NULL
        DEFAULT ('x' || md5(random()::text || clock_timestamp()::text))::bit(64)::bigint,
    ADD COLUMN probes bigint NOT NULL DEFAULT 0;
