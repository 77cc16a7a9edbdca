//! What a shim is told of the containers of a job, and the names that both sides know them by.
//!
//! Nothing here ever asks for a privileged container, for the daemon's socket inside one, or for a
//! folder outside the workspace.

use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::runtime::Runtime;

/// Where the workspace is in every container.
pub const WORKSPACE: &str = "/delta/workspace";
/// Where HOME is.
pub const HOME: &str = "/delta/home";
/// Where TMPDIR is.
pub const TMP: &str = "/delta/tmp";
/// The pipe that everything a job prints goes into.
pub const LOG: &str = "/delta/log";
/// Nothing of a job may be put over these.
pub const OWN_FOLDER: &str = "/delta";

/// Names the agent by whose order a container is there.
pub const AGENT_LABEL: &str = "delta-ci.agent";
/// Names the attempt it is there for.
pub const ATTEMPT_LABEL: &str = "delta-ci.attempt";

/// In front of the label of an attempt, it is the name of its container and of its network.
pub const NAME_PREFIX: &str = "delta-ci-";

/// What root keeps in a container of a trusted job or of a service: enough to install packages and
/// to become another user, nothing that reaches the machine's network, devices or kernel.
pub const KEPT: [&str; 8] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
];

/// How far a container reaches, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Itself, and its services by loopback.
    None,
    /// The world, from a network of the job's own.
    Bridge,
    /// What the machine reaches, its loopback too.
    Host,
}

impl Network {
    pub fn as_str(self) -> &'static str {
        match self {
            Network::None => "none",
            Network::Bridge => "bridge",
            Network::Host => "host",
        }
    }

    pub fn from_text(text: &str) -> Option<Network> {
        [Network::None, Network::Bridge, Network::Host]
            .into_iter()
            .find(|network| network.as_str() == text)
    }
}

/// When an image is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pull {
    IfMissing,
    Always,
}

/// Everything a shim needs to know to run steps in a container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerOrder {
    pub runtime: Runtime,
    /// The agent, as in [`AGENT_LABEL`].
    pub owner: String,
    pub image: String,
    pub pull: Pull,
    /// In front of our own first process; the image's own is left out when this is empty.
    pub entrypoint: Vec<String>,
    pub network: Network,
    pub memory_mb: Option<u64>,
    pub cpus: Option<f64>,
    pub pids: u32,
    /// `UID:GID`, or what the job says.
    pub user: String,
    /// Those of root that it keeps; all others are dropped.
    pub capabilities: Vec<String>,
    pub mounts: Vec<Mount>,
    pub services: Vec<Service>,
}

/// A folder of this machine in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub source: OsString,
    pub target: String,
    pub read_only: bool,
}

/// A container beside the job's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub name: String,
    pub image: String,
    pub env: Vec<(String, String)>,
    pub command: Vec<String>,
    /// What the first step waits for.
    #[serde(default)]
    pub ready: Option<Ready>,
}

/// When a service is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub sign: Sign,
    /// How long it may take in all.
    pub timeout: Duration,
    /// Between two looks.
    pub every: Duration,
}

/// What a service is known to be ready by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// A script ends well in its container.
    Run(String),
    /// It listens on this port.
    Port(u16),
}

/// What the label of an attempt says.
pub fn attempt_label(owner: &str, number: &str) -> String {
    format!("{owner}-{number}")
}
