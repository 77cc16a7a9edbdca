//! The file of runner pools: which programs hold functions, and how many calls each takes.
//!
//! What they are; `read` reads them from the file.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_yaml::Diagnostics;

use super::settings_file;

/// Bytes of the file: it is written by hand.
pub const MAX_FILE_BYTES: usize = 256 << 10;
/// Calls of one process at a time: what real runners take on a connection.
pub const MAX_IN_FLIGHT: u32 = 64;

/// All pools of an agent.
#[derive(Clone, Debug)]
pub struct RunnerSettings {
    pub pools: Vec<PoolSettings>,
    /// The pool of functions that name no runner, in queues that no pool serves.
    pub default: Option<String>,
}

/// One pool: processes of one program, or a runner that somebody else has started.
#[derive(Clone)]
pub struct PoolSettings {
    /// What stands before `#` in a function's name.
    pub name: String,
    pub source: RunnerSource,
    /// Calls at a time, of each process.
    pub in_flight: u32,
    /// Whether they share one connection, answered in any order.
    pub pipeline: bool,
    /// How long an answer may take, however long the job may.
    pub response_timeout: Option<Duration>,
    /// Between a cancel and the end of the process, and between TERM and KILL.
    pub grace: Duration,
    pub start_timeout: Duration,
    /// Functions of these queues that name no runner are called here.
    pub queues: Vec<String>,
}

/// Where a runner comes from.
#[derive(Clone)]
pub enum RunnerSource {
    Command {
        words: Vec<String>,
        env: Vec<(String, String)>,
        folder: PathBuf,
        /// Processes.
        size: u32,
        /// Where the first of them listens, the next one behind it, and so on; where nobody says,
        /// on ports that are free.
        port: Option<u16>,
    },
    /// Somebody else's, on the loopback.
    Address(SocketAddr),
}

impl fmt::Debug for PoolSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSettings")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Why there are no pools.
#[derive(Debug, thiserror::Error)]
pub enum RunnerSettingsError {
    #[error("has more than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    #[error(transparent)]
    Faults(#[from] Diagnostics),
}

impl RunnerSettings {
    /// Reads the text of a file, which diagnostics call `file`; `folder` is what its paths are
    /// relative to.
    pub fn parse(
        file: &str,
        text: &str,
        folder: &Path,
    ) -> Result<RunnerSettings, RunnerSettingsError> {
        if text.len() > MAX_FILE_BYTES {
            Err(RunnerSettingsError::TooLarge)
        } else {
            Ok(settings_file::file(file, text, folder)?)
        }
    }

    /// Calls that all of them take at a time.
    pub fn room(&self) -> u32 {
        self.pools.iter().map(PoolSettings::room).sum()
    }
}

impl PoolSettings {
    /// Processes, or the one that somebody else has started.
    pub fn size(&self) -> usize {
        match self.source {
            RunnerSource::Command { size, .. } => size as usize,
            RunnerSource::Address(_) => 1,
        }
    }

    /// Where the process of this lane is to listen, if that was said.
    pub fn port(&self, lane: usize) -> Option<u16> {
        let RunnerSource::Command { port, .. } = self.source else {
            return None;
        };
        port?.checked_add(u16::try_from(lane).ok()?)
    }

    /// Calls that it takes at a time.
    pub fn room(&self) -> u32 {
        match self.source {
            RunnerSource::Command { size, .. } => size * self.in_flight,
            RunnerSource::Address(_) => self.in_flight,
        }
    }
}
