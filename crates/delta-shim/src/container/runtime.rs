//! The program that makes containers on a machine, as a shim is told of it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Whose commands they are; they differ in small things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Docker,
    Podman,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Docker => "docker",
            Kind::Podman => "podman",
        }
    }
}

/// A program that makes containers, and the environment it works in. Nothing a job sets is ever in
/// that environment: such a variable could lead it to another daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    pub program: PathBuf,
    pub kind: Kind,
    pub version: String,
    pub env: Vec<(OsString, OsString)>,
    /// Where the daemon listens, where the program's own settings say so and not the environment.
    #[serde(default)]
    pub host: Option<String>,
}

impl Runtime {
    /// This program without the agent's logins at registries: whose code is not trusted could
    /// fetch with them what only the agent may read. Logins are looked for in `folder`, which has
    /// none.
    pub fn without_logins(&self, folder: &Path) -> io::Result<Runtime> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let file = folder.join("config.json");
        fs::write(&file, "{}")?;
        let mut env = self.env.clone();
        let hidden = ["DOCKER_CONFIG", "DOCKER_CONTEXT", "REGISTRY_AUTH_FILE"];
        env.retain(|(name, _)| !hidden.iter().any(|it| name == it));
        env.push(("DOCKER_CONFIG".into(), folder.into()));
        env.push(("REGISTRY_AUTH_FILE".into(), file.into()));
        // Which daemon is meant is one of the settings that are hidden now.
        if let Some(host) = &self.host {
            env.push(("DOCKER_HOST".into(), host.into()));
        }
        Ok(Runtime {
            env,
            ..self.clone()
        })
    }
}
