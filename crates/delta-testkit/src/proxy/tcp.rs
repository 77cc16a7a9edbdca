//! The proxy that knows bytes and connections only: the handle a test holds.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::watch;

use super::door::Door;
use super::journal::Journal;
use super::lane::{Direction, Lane, Lanes};
use super::pump::{self, Shared};
use super::trap::{Then, Trap, Traps, When};

/// PostgreSQL's ReadyForQuery outside of a transaction: the end of the answer to a COMMIT, whether
/// it succeeded or failed. Inside a transaction the last byte is `T` or `E`.
const TRANSACTION_OVER: &[u8] = b"Z\0\0\0\x05I";

/// Where the connection to PostgreSQL is cut around a COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitCut {
    /// The COMMIT never arrives: the transaction is rolled back.
    Before,
    /// It is sent and the connection cut at once: either may have happened.
    Unknown,
    /// It is done, and only the answer is lost.
    After,
}

/// A TCP proxy with faults. New faults hold for connections that exist too.
#[derive(Debug)]
pub struct Proxy {
    door: Door,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens on a loopback port and forwards to `target`, which need not be there yet.
    pub fn start(target: SocketAddr, seed: u64) -> Result<Self> {
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            seed,
            lanes: watch::Sender::new(Lanes::default()),
            traps: Traps::default(),
            journal: Journal::new(seed),
            passed: Default::default(),
        });
        let of_connections = shared.clone();
        let door =
            Door::open(move |number, client| pump::serve(of_connections.clone(), number, client))?;
        Ok(Self { door, shared })
    }

    /// Lets new connections lead elsewhere; those that exist stay where they are.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap_or_else(|e| e.into_inner()) = target;
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.door.addr()
    }

    /// Each piece of bytes waits a time drawn from the range; an empty range lifts it.
    pub fn delay(&self, direction: Direction, range: Range<Duration>) {
        let delay = (!range.is_empty()).then_some(range);
        self.change(direction, |lane| lane.delay = delay);
    }

    /// No faster than this; `None` lifts it.
    pub fn throttle(&self, direction: Direction, bytes_per_second: Option<u32>) {
        self.change(direction, |lane| lane.bytes_per_second = bytes_per_second);
    }

    /// Bytes of this direction wait until [`Proxy::release`]; none is lost.
    pub fn hold(&self, direction: Direction) {
        self.change(direction, |lane| lane.held = true);
    }

    pub fn release(&self, direction: Direction) {
        self.change(direction, |lane| lane.held = false);
    }

    /// Bytes of this direction vanish while connections stay open. [`Proxy::heal`] resets each
    /// connection that lost some: a stream never goes on with a hole in it.
    pub fn blackhole(&self, direction: Direction) {
        self.change(direction, |lane| lane.blackhole = true);
    }

    /// Each piece of bytes has this chance to be lost together with its connection.
    pub fn reset_chance(&self, direction: Direction, probability: f64) {
        self.change(direction, |lane| lane.reset_chance = probability);
    }

    /// Each piece of bytes has this chance to be the end of its direction: it and what follows are
    /// lost, their reader sees an orderly end, and the other direction goes on.
    pub fn half_close_chance(&self, direction: Direction, probability: f64) {
        self.change(direction, |lane| lane.half_close_chance = probability);
    }

    /// The next bytes of this direction are lost and their connection is reset.
    pub fn drop_and_reset_once(&self, direction: Direction) {
        self.trap(Trap::once(direction, When::NextBytes, Then::DropAndReset));
    }

    /// So many more bytes pass in this direction, then the connection they are on is reset.
    pub fn reset_after(&self, direction: Direction, bytes: u64) {
        self.trap(Trap::once(
            direction,
            When::AfterBytes(bytes),
            Then::DeliverAndReset,
        ));
    }

    /// Arms any other trap.
    pub fn trap(&self, trap: Trap) {
        self.shared.traps.arm(trap);
    }

    /// Before PostgreSQL: the next COMMIT loses its connection (F19).
    pub fn cut_commit_once(&self, cut: CommitCut) {
        self.cut_commits(cut, 1, 1.0);
    }

    /// Before PostgreSQL: so many COMMITs, each picked with this chance, lose their connection.
    pub fn cut_commits(&self, cut: CommitCut, times: u32, chance: f64) {
        let then = match cut {
            CommitCut::Before => Then::DropAndReset,
            CommitCut::Unknown => Then::DeliverAndReset,
            CommitCut::After => Then::SwallowAnswer {
                until: TRANSACTION_OVER.to_vec(),
            },
        };
        let when = When::Pattern(b"COMMIT".to_vec());
        self.trap(Trap {
            times,
            chance,
            ..Trap::once(Direction::ToServer, when, then)
        });
    }

    /// New connections are refused, as by a server that is down; those that exist stay.
    pub fn refuse_connections(&self) {
        self.door.shut();
        self.shared
            .journal
            .note("refuse", "new connections, from now on".into());
    }

    pub fn accept_connections(&self) {
        self.door.open_again();
    }

    /// Resets every connection now; returns how many there were.
    pub fn cut_all(&self) -> usize {
        let cut = self.door.cut_all();
        self.shared
            .journal
            .note("cut all", format!("{cut} connections"));
        cut
    }

    /// Lifts every fault, disarms every trap, accepts connections again.
    pub fn heal(&self) {
        self.shared.traps.clear();
        self.shared.lanes.send_replace(Lanes::default());
        self.door.open_again();
    }

    /// Connections there are now.
    pub fn connections(&self) -> usize {
        self.door.live()
    }

    /// Traps that have not fired (as often as they should) yet.
    pub fn armed(&self) -> usize {
        self.shared.traps.armed()
    }

    /// Bytes delivered in this direction, over all connections.
    pub fn passed(&self, direction: Direction) -> u64 {
        self.shared.passed[direction.index()].load(Ordering::SeqCst)
    }

    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    fn change(&self, direction: Direction, change: impl FnOnce(&mut Lane)) {
        self.shared
            .lanes
            .send_modify(|lanes| change(&mut lanes[direction.index()]));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.journal.print_if_panicking("fault proxy");
    }
}
