//! A process with all its children, which end with it.
//!
//! Owns that whatever a call has started is gone once nobody waits for it any more: git and the
//! planning worker start programs of their own. Refuses to know what the process is for.

use std::io;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// A process and whatever it starts: they have a group of their own, which is killed with this.
pub struct ProcessGroup {
    pub child: Child,
    id: Option<Pid>,
}

impl ProcessGroup {
    pub fn spawn(mut command: Command) -> io::Result<ProcessGroup> {
        let child = command.process_group(0).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Ok(ProcessGroup {
            id: id.and_then(Pid::from_raw),
            child,
        })
    }

    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        // From now on the number may be somebody else's.
        self.id = None;
        Ok(status)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // Nothing to do about one that is gone.
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}
