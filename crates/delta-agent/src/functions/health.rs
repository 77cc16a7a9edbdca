//! How the runners are, for whoever asks.

use std::net::SocketAddr;

/// A pool and its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolHealth {
    pub name: String,
    pub processes: Vec<ProcessHealth>,
    /// Calls that wait for room.
    pub waiting: usize,
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
