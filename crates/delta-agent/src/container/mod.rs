//! Jobs in containers, as the agent sees them: which program makes containers here, what it may be
//! asked for, and what a job's spec comes to.
//!
//! The containers themselves are the shim's ([`delta_shim::container`]): it starts them, follows
//! them and ends them, with the agent there or not.

mod available;
mod detection;
mod plan;

use std::path::PathBuf;

use delta_shim::container::{Network, Pull};

pub(crate) use self::available::Here;
pub use self::detection::detect;
pub(crate) use self::plan::{PlanContext, plan};

/// What an agent allows and uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSettings {
    /// The program; `docker`, then `podman`, whichever works, when absent.
    pub program: Option<PathBuf>,
    /// Where its daemon listens, as docker's own `DOCKER_HOST`.
    pub host: Option<String>,
    /// The most network a job may ask for.
    pub network: Network,
    pub pull: Pull,
}

impl Default for ContainerSettings {
    fn default() -> Self {
        ContainerSettings {
            program: None,
            host: None,
            network: Network::Bridge,
            pull: Pull::IfMissing,
        }
    }
}
