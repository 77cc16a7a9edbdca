//! The shim: a small process per attempt that owns the job's processes and its log (D7).
//!
//! The agent starts it and may then be killed, upgraded or cut off: the shim goes on, and the next
//! agent finds it by its state folder. It ends the work when it is told to, when a deadline passes,
//! and at the lease's local end whether or not an agent is there. It knows no lease token, no
//! credential and no server, refuses whoever does not know its key, and cannot reach a network:
//! `cargo xtask deps` fails when anything it is built of can.
//!
//! Reading order: [`order`] and [`step`] (what is said), `shim` (the life of one attempt),
//! `step_execution`, [`verdict`] (what an end means), `control` (its socket), `spawner`,
//! [`processes`] (the end of a tree, with and without a shim), [`groups`], [`sandbox`],
//! [`container`], [`spool`] and [`mask`] (the log), [`job_files`] and [`report_archive`] (what a
//! job wrote). Beside it, [`guard`]: what stands between an agent and one runner of functions.
//!
//! An agent is built of the same parts: it writes orders and reads records, goes on with a log, and
//! ends what a lost shim left behind.

#![cfg(unix)]
#![forbid(unsafe_code)]

pub mod clock;
mod complaints;
pub mod container;
mod control;
pub mod evidence;
pub mod groups;
pub mod guard;
pub mod handed_secrets;
pub mod inherited_files;
pub mod job_files;
pub mod key;
pub mod mask;
pub mod order;
pub mod processes;
pub mod program;
pub mod report_archive;
pub mod report_files;
pub mod sandbox;
mod shim;
mod spawner;
pub mod spool;
pub mod step;
mod step_execution;
pub mod stop;
mod timer;
pub mod verdict;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;

use rustix::process::{
    DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior, setsid,
};

use self::complaints::complain;
use self::handed_secrets::Handed;
use self::order::{ORDER_FILE, Order};
use self::sandbox::namespaces;

/// Carries out the order in this state folder. The listening socket comes as standard input, so
/// that it is there before the shim is.
pub fn main(folder: &Path) -> ExitCode {
    complaints::go_to(folder);
    std::panic::set_hook(Box::new(|panic| complain(&panic.to_string())));
    if let Some(possible) = namespaces::trial(folder) {
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

fn carry_out(folder: &Path) -> io::Result<()> {
    // A session of its own: nothing that is sent to the agent's terminal or group gets here. It
    // fails only for the leader of a group, which is on its own already.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    let order: Order = serde_json::from_slice(&fs::read(folder.join(ORDER_FILE))?)?;
    let apart = order.confinement.apart && order.container.is_none();
    if apart && !rustix::process::geteuid().is_root() {
        // While there is one thread. Where it fails the job is not started: see there.
        if let Err(problem) = namespaces::own_users() {
            complain(&format!("no namespace for users: {problem}"));
        }
    }
    // Nobody of the same user may look into it or attach to it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let secrets = if order.has_secrets {
        Handed::take_from_memory(&File::from(io::stdout().as_fd().try_clone_to_owned()?))?
    } else {
        Handed::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let socket = UnixListener::from(socket);
    runtime.block_on(shim::run(folder, order, secrets, socket))
}
