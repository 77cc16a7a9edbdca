-- identity: the name of this store, drawn when it is made, so that another one in its place is not
-- taken for it. probes: how often somebody tried whether anything can be written.
INSERT INTO meta (name, value) VALUES ('identity', random()), ('probes', 0);
