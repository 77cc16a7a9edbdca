//! The shim: a small process per attempt that owns the job's processes and its log (D7).
//!
//! The agent starts it and may then be killed, upgraded or cut off: the shim goes on, and the next
//! agent finds it by its state folder. It ends the work when it is told to, when a deadline passes,
//! and at the lease's local end whether or not an agent is there. It knows no lease token, no
//! credential and no server, and refuses whoever does not know its key.
//!
//! Reading order: [`order`] (what is said), `attempt` (the life of one), `steps`, `tree` (its end),
//! `mark` and `strays` (its end without a shim), `control`, `spawner`, `sandbox` (with `rules`,
//! `user` and `apart`), `group`, `memory` and `joining`, `container`.

pub(crate) mod apart;
mod attempt;
mod container;
mod control;
pub(crate) mod evidence;
pub(crate) mod group;
mod joining;
pub(crate) mod mark;
mod memory;
pub(crate) mod order;
mod rules;
mod sandbox;
mod spawner;
mod steps;
pub(crate) mod strays;
mod timer;
pub(crate) mod tree;
mod user;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use rustix::process::{
    DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior, setsid,
};

pub use self::order::{Abandoned, StepRecord, StopAt};
use self::order::{COMPLAINTS_FILE, ORDER_FILE, Order};
pub use self::sandbox::{Confinement, Sandbox};
pub(crate) use self::sandbox::{Places, confine};
use crate::secret::Handed;

/// The word on the command line that makes this program a shim.
pub const SUBCOMMAND: &str = "shim";

/// Carries out the order in this state folder. The listening socket comes as standard input, so
/// that it is there before the shim is.
pub fn main(folder: &Path) -> ExitCode {
    let _ = COMPLAINTS.set(folder.join(COMPLAINTS_FILE));
    std::panic::set_hook(Box::new(|panic| complain(&panic.to_string())));
    if let Some(possible) = apart::trial(folder) {
        return if possible {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    match carry_out(folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            complain(&format!("the shim of {}: {problem}", folder.display()));
            ExitCode::FAILURE
        }
    }
}

/// Where this shim writes what goes wrong inside itself; no file as long as nothing does.
static COMPLAINTS: OnceLock<PathBuf> = OnceLock::new();

/// Says what went wrong to whoever looks for a lost shim.
pub(crate) fn complain(text: &str) {
    let Some(path) = COMPLAINTS.get() else { return };
    let mut options = File::options();
    let file = options.create(true).append(true).mode(0o600).open(path);
    // Nobody is left to be told.
    let _ = file.and_then(|mut file| writeln!(file, "{text}"));
}

fn carry_out(folder: &Path) -> io::Result<()> {
    // A session of its own: nothing that is sent to the agent's terminal or group gets here. It
    // fails only for the leader of a group, which is on its own already.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    let order: Order = serde_json::from_slice(&fs::read(folder.join(ORDER_FILE))?)?;
    let apart = order.confinement.apart && order.container.is_none();
    if apart && !rustix::process::geteuid().is_root() {
        // While there is one thread. Where it fails the job is not started: see there.
        if let Err(problem) = apart::own_users() {
            complain(&format!("no namespace for users: {problem}"));
        }
    }
    // Nobody of the same user may look into it or attach to it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let secrets = match order.has_secrets {
        true => Handed::take_from_memory(&File::from(io::stdout().as_fd().try_clone_to_owned()?))?,
        false => Handed::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let socket = UnixListener::from(socket);
    runtime.block_on(attempt::run(folder, order, secrets, socket))
}
