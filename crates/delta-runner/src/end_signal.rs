//! When a runner ends: it is asked to, or whoever started it is gone.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Why it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// What runs may be finished.
    Asked,
    /// Nobody is there to hear of it.
    Orphaned,
}

/// What a runner listens to beside its socket.
pub(crate) struct Life {
    terminate: Signal,
    interrupt: Signal,
    /// The parent as a process: the kernel's own signal at a parent's death means the thread that
    /// started us, which may end while the process goes on.
    parent: Option<oneshot::Receiver<()>>,
}

impl Life {
    pub fn begin() -> io::Result<Life> {
        Ok(Life {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            parent: parent().map(watch),
        })
    }

    /// Waits for the end, and says why.
    pub async fn over(&mut self) -> Why {
        let orphaned = async {
            match &mut self.parent {
                Some(parent) => drop(parent.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Why::Asked,
            _ = self.interrupt.recv() => Why::Asked,
            () = orphaned => Why::Orphaned,
        }
    }
}

/// A hold on the parent. One that was gone before it could be held has given us to another.
fn parent() -> Option<OwnedFd> {
    let parent: Pid = getppid()?;
    let held = pidfd_open(parent, PidfdFlags::empty()).ok()?;
    (getppid() == Some(parent)).then_some(held)
}

/// Tells when the process is gone, from a thread that waits for nothing else.
fn watch(held: OwnedFd) -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let mut gone = [PollFd::new(&held, PollFlags::IN)];
        while matches!(poll(&mut gone, None), Err(Errno::INTR)) {}
        let _ = tell.send(());
    });
    told
}
