//! The guard: a small process between the agent and one runner (the same binary), so that nothing
//! of a runner outlives its agent, however that ends.
//!
//! It is the reaper of everything the runner starts, whatever session or group that moved to, and
//! ends all of it when it is told to, when the runner itself has ended, and when the pipe from the
//! agent closes: TERM first, KILL after a moment. It also keeps the runner from being a child of
//! the first process of a container, which some runners refuse. It knows no lease, no credential
//! and no server.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, setsid, wait};
use serde::{Deserialize, Serialize};

use crate::processes::mark::Mark;
use crate::processes::tree;
use crate::sandbox::{Confinement, Places, confine};

/// The word on the command line that makes this program a guard.
pub const SUBCOMMAND: &str = "runner-guard";

/// Everything is asked to end.
pub const TERMINATE: u8 = b't';
/// Everything is ended.
pub const KILL: u8 = b'k';

/// Bytes of an order: a command and a few paths.
const MAX_ORDER_BYTES: u64 = 4 << 20;
/// Between TERM and KILL when the agent is gone: nobody waits for what is still running.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// Between two rounds of ending everything.
const ROUND: Duration = Duration::from_millis(5);
/// How long the rest of a runner's processes is ended after it; what survives that is stuck inside
/// the kernel.
const LEFTOVERS: Duration = Duration::from_secs(10);
/// What a shell says of a program that cannot be started.
const NOT_STARTED: u8 = 127;

/// What a guard is told, as one line in front of all else.
#[derive(Debug, Serialize, Deserialize)]
pub struct GuardOrder {
    pub words: Vec<OsString>,
    pub folder: PathBuf,
    pub confinement: Confinement,
    /// What the runner is kept from by name: the agent's state and credentials.
    pub hidden: Vec<PathBuf>,
    /// By which its processes are found should the guard be lost.
    pub mark: Option<Mark>,
}

/// Starts the runner that standard input describes, and stays until nothing of it is left.
pub fn main() -> ExitCode {
    match guard() {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn guard() -> io::Result<u8> {
    // It fails only for the leader of a group, which is on its own already.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    let mut orders = BufReader::new(io::stdin());
    let mut line = Vec::new();
    orders
        .by_ref()
        .take(MAX_ORDER_BYTES)
        .read_until(b'\n', &mut line)?;
    let order: GuardOrder = serde_json::from_slice(&line)?;
    let places = Places {
        writable: &[],
        hidden: &order.hidden,
    };
    if let Some(mark) = order.mark {
        // Never required.
        let _ = mark.put();
    }
    // This thread starts the runner, and all others inherit from it.
    confine(order.confinement, &places).map_err(io::Error::other)?;
    let runner = start(&order)?;
    std::thread::spawn(move || obey(orders));
    let ended = wait_for(runner)?;
    clear();
    Ok(code(ended))
}

fn start(order: &GuardOrder) -> io::Result<Pid> {
    let (program, arguments) = order
        .words
        .split_first()
        .ok_or(io::ErrorKind::InvalidInput)?;
    let started = Command::new(program)
        .args(arguments)
        .current_dir(&order.folder)
        .stdin(Stdio::null())
        .spawn();
    let child = started.map_err(|problem| {
        let (program, folder) = (program.to_string_lossy(), order.folder.display());
        io::Error::other(format!("cannot start {program} in {folder}: {problem}"))
    })?;
    // Never waited for through this: all children are reaped in one place.
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("a child without a number"))
}

/// Carries out what the agent says, until it says nothing any more.
fn obey(mut orders: impl Read) {
    let mut order = [0];
    loop {
        match orders.read(&mut order) {
            Ok(1..) if order[0] == TERMINATE => tree::terminate(),
            Ok(1..) if order[0] == KILL => break,
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => {
                tree::terminate();
                std::thread::sleep(ORPHAN_GRACE);
                break;
            }
        }
    }
    // This process ends when there is nothing left to end.
    loop {
        tree::kill(None);
        std::thread::sleep(ROUND);
    }
}

fn wait_for(runner: Pid) -> io::Result<ExitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == runner => {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends what the runner left behind.
fn clear() {
    let began = Instant::now();
    while !tree::reap().none_left && began.elapsed() < LEFTOVERS {
        tree::kill(None);
        std::thread::sleep(ROUND);
    }
}

/// As a shell would tell it.
fn code(ended: ExitStatus) -> u8 {
    let signal = ended.signal().map(|signal| 128 + signal);
    let code = ended.code().or(signal).unwrap_or(0);
    u8::try_from(code).unwrap_or(1)
}
