//! Keys of other systems in what stands around a job's work.

use super::word;
use crate::fields::Foreign;
use crate::yaml::Node;

const WRITE_ENV: &str = "write `env: {NAME: value}`";

pub(crate) const ARTIFACT: &[Foreign] = &[
    word(
        "path",
        "path_glob",
        "write the pattern alone, or `path_glob` and `type`",
    ),
    word(
        "paths",
        "path_glob",
        "write an item for each pattern: `- dist/**`",
    ),
    word(
        "name",
        "type",
        "write the pattern alone, or `path_glob` and `type`",
    ),
    word(
        "expire_in",
        "",
        "how long artifacts are kept is the server's setting; remove the key",
    ),
    word(
        "retention-days",
        "",
        "how long artifacts are kept is the server's setting; remove the key",
    ),
    word(
        "when",
        "",
        "they are kept after a failure, too; remove the key",
    ),
    word(
        "reports",
        "",
        "reports of tests are `results: {format: junit, path: junit.xml}`",
    ),
];

pub(crate) const CACHE: &[Foreign] = &[
    word("path", "paths", "write `paths: [node_modules]`"),
    word(
        "restore-keys",
        "restore_keys",
        "write `restore_keys: [\"npm-\"]`",
    ),
    word(
        "fallback_keys",
        "restore_keys",
        "write `restore_keys: [\"npm-\"]`",
    ),
    word(
        "policy",
        "",
        "a cache is restored before and saved after the work; remove the key",
    ),
    word(
        "files",
        "key",
        "write `key: \"npm-{hash:package-lock.json}\"`",
    ),
];

pub(crate) const RESULTS: &[Foreign] = &[
    word(
        "junit",
        "",
        "write `results: {format: junit, path: junit.xml}`",
    ),
    word("tap", "", "write `results: {format: tap, path: out.tap}`"),
    word("type", "format", "write `format: junit`"),
    word("files", "path", "write `path: \"**/junit.xml\"`"),
    word("file", "path", "write `path: junit.xml`"),
    word(
        "paths",
        "path",
        "write `path: \"**/junit.xml\"`, or a list of reports",
    ),
    word("path_glob", "path", "write `path: \"**/junit.xml\"`"),
];

pub(crate) const CONTAINER: &[Foreign] = &[
    word(
        "image",
        "image",
        "the image is a key of the job, beside `container`: `image: NAME:TAG`",
    ),
    word(
        "env",
        "",
        "variables are a key of the job, beside `container`: `env: {NAME: value}`",
    ),
    word(
        "volumes",
        "mounts",
        "write `mounts: [{source: FOLDER, target: /FOLDER}]`",
    ),
    word("memory", "memory_mb", "write `memory_mb: 4096`"),
    word("cpu", "cpus", "write `cpus: 2`"),
    word(
        "ports",
        "",
        "the job reaches its services by their names; remove the key",
    ),
    word(
        "options",
        "",
        "write `memory_mb`, `cpus`, `pids`, `user` or `network`",
    ),
    word(
        "credentials",
        "",
        "registries' logins are the agent's; see docs/containers.md",
    ),
    word(
        "privileged",
        "",
        "no container is privileged; remove the key",
    ),
];

pub(crate) const SERVICE: &[Foreign] = &[
    word("alias", "name", "write `name`"),
    word("environment", "env", WRITE_ENV),
    word("variables", "env", WRITE_ENV),
    word(
        "ports",
        "",
        "the job reaches a service by its name; remove the key",
    ),
    word("entrypoint", "", "write the words of `command`"),
    word(
        "volumes",
        "",
        "a service sees nothing of the workspace; remove the key",
    ),
    word("healthcheck", "ready", WHEN_READY),
    word("health", "ready", WHEN_READY),
    word("options", "ready", WHEN_READY),
    word("wait_for", "ready", WHEN_READY),
];

const WHEN_READY: &str =
    "write when it is ready: `ready: {run: pg_isready}`, or `ready: {port: 5432}`";

pub(crate) const READY: &[Foreign] = &[
    word("test", "run", "write `run: pg_isready`"),
    word("command", "run", "write `run: pg_isready`"),
    word("cmd", "run", "write `run: pg_isready`"),
    word("interval", "every", "write `every: 1s`"),
    word("tcp", "port", "write `port: 5432`"),
    word(
        "start_period",
        "timeout",
        "write `timeout: 1m`: how long it may take in all",
    ),
    word(
        "retries",
        "timeout",
        "write `timeout: 1m`: how long it may take in all",
    ),
];

pub(crate) const SECRET: &[Foreign] = &[
    word("value", "", NO_VALUES),
    word("source", "name", "write `{name: NAME, env: VARIABLE}`"),
    word("target", "env", "write `{name: NAME, env: VARIABLE}`"),
    word("from_secret", "name", "write `{name: NAME, env: VARIABLE}`"),
    word(
        "vault",
        "",
        "write the names of secrets alone: `secrets: [NAME]`",
    ),
];

/// Where values of secrets are kept.
pub(crate) const NO_VALUES: &str =
    "write the names alone, `secrets: [NAME]`; a value is kept with `delta-ci secret set NAME`";

pub(crate) const INPUT: &[Foreign] = &[
    word(
        "name",
        "job",
        "write `{job: build, path_glob: \"dist/**\"}`",
    ),
    word(
        "path",
        "into",
        "write `path_glob` for what is taken, `into` for where it goes",
    ),
    word(
        "artifacts",
        "",
        "write `path_glob: \"dist/**\"`, or leave it out to take all of them",
    ),
];

/// What to write where a key looks like the name of a secret.
pub(crate) fn of_secret(key: &str, _: &Node) -> Option<&'static str> {
    key.contains(|c: char| c.is_ascii_uppercase())
        .then_some(NO_VALUES)
}
