//! The two directions of a connection, and the faults that last until they are lifted.

use std::ops::Range;
use std::time::Duration;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests.
    ToServer,
    /// From the server to the client: answers.
    ToClient,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

    pub(super) fn opposite(self) -> Self {
        match self {
            Direction::ToServer => Direction::ToClient,
            Direction::ToClient => Direction::ToServer,
        }
    }

    pub(super) fn index(self) -> usize {
        match self {
            Direction::ToServer => 0,
            Direction::ToClient => 1,
        }
    }
}

/// What happens to bytes of one direction, on every connection, until it is changed.
#[derive(Debug, Clone, Default)]
pub(super) struct Lane {
    /// Each piece of bytes waits a time drawn from this range.
    pub(super) delay: Option<Range<Duration>>,
    pub(super) bytes_per_second: Option<u32>,
    /// Bytes wait here until they are released.
    pub(super) held: bool,
    /// Bytes vanish.
    pub(super) blackhole: bool,
    /// The chance of each piece of bytes to be lost together with its connection.
    pub(super) reset_chance: f64,
    /// The chance of each piece of bytes to be lost with all that follow it in this direction,
    /// whose reader sees an orderly end; the other direction goes on.
    pub(super) half_close_chance: f64,
}

pub(super) type Lanes = [Lane; 2];
