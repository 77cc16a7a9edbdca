//! The program that makes containers on this machine, found by asking it for what makes them: a
//! client alone, whose daemon or storage does not answer, makes none.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use delta_shim::container::{Kind, Runtime};
use tokio::process::Command;

use super::ContainerSettings;

/// How long one answer may take: a loaded machine, not a hang.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Bytes of its answer that are read.
const ANSWER_BYTES: usize = 4096;

/// Looked for in this order.
const PROGRAMS: [&str; 2] = ["docker", "podman"];

/// What of the agent's environment says how to reach the daemon and the registries. Credentials of
/// registries are in files that these lead to, never in the variables themselves.
const OWN_VARIABLES: [&str; 13] = [
    "PATH",
    "HOME",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "CONTAINER_HOST",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "REGISTRY_AUTH_FILE",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
];

/// The runtime of this machine, if one answers.
pub async fn detect(settings: &ContainerSettings) -> Option<Runtime> {
    match &settings.program {
        Some(program) => look(program, settings).await,
        None => {
            for program in PROGRAMS {
                if let Some(runtime) = look(Path::new(program), settings).await {
                    return Some(runtime);
                }
            }
            None
        }
    }
}

async fn look(program: &Path, settings: &ContainerSettings) -> Option<Runtime> {
    let env = environment(settings);
    let said = ask(program, &env, &["--version"]).await?;
    let (kind, asked) = match said.starts_with("podman version ") {
        // It has no daemon; this opens its storage, and finds what starts containers.
        true => (Kind::Podman, ["info", "--format", "{{.Version.Version}}"]),
        false => (Kind::Docker, ["version", "--format", "{{.Server.Version}}"]),
    };
    let version = ask(program, &env, &asked).await?;
    let said = env.iter().any(|(name, _)| name == "DOCKER_HOST");
    let host = match kind {
        Kind::Docker if !said => {
            let asked = [
                "context",
                "inspect",
                "--format",
                "{{.Endpoints.docker.Host}}",
            ];
            ask(program, &env, &asked).await
        }
        _ => None,
    };
    Some(Runtime {
        program: absolute(program),
        kind,
        version,
        env,
        host,
    })
}

async fn ask(program: &Path, env: &[(OsString, OsString)], arguments: &[&str]) -> Option<String> {
    let asked = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let answer = tokio::time::timeout(ANSWER_TIME, asked).await.ok()?.ok()?;
    let mut text = answer.stdout;
    text.truncate(ANSWER_BYTES);
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    (answer.status.success() && !text.is_empty()).then_some(text)
}

fn environment(settings: &ContainerSettings) -> Vec<(OsString, OsString)> {
    let named = OWN_VARIABLES.into_iter().filter_map(|name| {
        let value = std::env::var_os(name)?;
        Some((OsString::from(name), value))
    });
    let mut env: Vec<_> = named.collect();
    if let Some(host) = &settings.host {
        env.retain(|(name, _)| name != "DOCKER_HOST" && name != "DOCKER_CONTEXT");
        env.push(("DOCKER_HOST".into(), host.into()));
    }
    env
}

/// The shim has another working folder, and its caller's `PATH` may change: a name is looked up
/// once.
fn absolute(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return std::path::absolute(program).unwrap_or_else(|_| program.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .unwrap_or_else(|| program.to_owned())
}
