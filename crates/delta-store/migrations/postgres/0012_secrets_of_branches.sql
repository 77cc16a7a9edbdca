-- A secret may be good for one branch only. An empty branch means any, as before.
ALTER TABLE secrets ADD COLUMN branch text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE secrets ALTER COLUMN branch DROP DEFAULT;
ALTER TABLE secrets DROP CONSTRAINT secrets_pkey;
ALTER TABLE secrets ADD PRIMARY KEY (project, name, repository, branch, environment);
