//! How the runners are, for whoever asks.

use std::net::SocketAddr;

use delta_wire::agent::proto::RunnerPool;

/// A pool and its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolHealth {
    pub name: String,
    pub processes: Vec<ProcessHealth>,
    /// Calls that it takes at a time.
    pub room: u32,
    /// Calls that wait for room.
    pub waiting: usize,
    /// Messages of types that nobody knows (RQ-12).
    pub unknown: u64,
}

/// Characters of an error that are said: a line on a terminal, and a half.
const MAX_ERROR: usize = 200;

impl PoolHealth {
    /// As the server is told.
    pub fn said(&self) -> RunnerPool {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let ready = |it: &&ProcessHealth| it.state == ProcessState::Ready;
        let restarts = self.processes.iter().map(|it| it.starts.saturating_sub(1));
        let why = self.processes.iter().rev();
        let why = why.filter_map(|it| it.last_error.as_deref());
        let why = why.into_iter().next().unwrap_or_default();
        RunnerPool {
            name: self.name.clone(),
            up: number(self.processes.iter().filter(ready).count()),
            wanted: number(self.processes.len()),
            in_flight: self.processes.iter().map(|it| it.in_flight).sum(),
            room: self.room,
            waiting: number(self.waiting),
            restarts: restarts.sum(),
            last_error: why.chars().take(MAX_ERROR).collect(),
        }
    }
}

/// One process of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessHealth {
    pub state: ProcessState,
    /// Of the process that guards it; its parent.
    pub pid: Option<u32>,
    pub address: Option<SocketAddr>,
    /// Calls under way.
    pub in_flight: u32,
    /// Times it was started.
    pub starts: u64,
    /// Why it last was not there.
    pub last_error: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessState {
    #[default]
    Starting,
    Ready,
    /// Being ended.
    Stopping,
    /// It ended, and is started again in a while.
    BackingOff,
}
