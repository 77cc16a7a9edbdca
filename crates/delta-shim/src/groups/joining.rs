//! The groups of one attempt: made when it begins, told of in its folder for whoever must end it
//! without the shim, left and removed when it is over.
//!
//! The control group is joined beside the work, because it may take a while (see
//! [`super::control_group`]), unless it also counts memory: then the work waits, so that every
//! process of it is counted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::control_group::{Group, NAME_PREFIX};
use super::memory_count::Memory;
use crate::order::{GROUP_FILE, MEMORY_FILE, Order};

/// The groups, as far as there are any.
#[derive(Default)]
pub(crate) struct Joining {
    joined: Arc<OnceLock<Group>>,
    thread: Option<JoinHandle<()>>,
    memory: Option<Memory>,
    /// The file in which the control group counts memory, once it is joined; nothing where it
    /// does not.
    counting: Option<oneshot::Receiver<PathBuf>>,
}

impl Joining {
    /// Makes what this machine has of what the order asks for.
    pub fn start(folder: &Path, order: &Order) -> Joining {
        if !order.control_group {
            return Joining::default();
        }
        let number = folder.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{NAME_PREFIX}{}-{number}", std::process::id());
        // A container counts for itself.
        let memory = match order.container {
            None => memory(folder, &name),
            Some(_) => None,
        };
        let joined = Arc::new(OnceLock::new());
        let (tell, counting) = oneshot::channel();
        let (cell, folder) = (Arc::clone(&joined), folder.to_owned());
        let join = move || join(&folder, &name, &cell, tell);
        // Without the thread there is no group, and the sweep does it alone.
        let thread = std::thread::Builder::new().name("group".into()).spawn(join);
        Joining {
            joined,
            thread: thread.ok(),
            memory,
            counting: order.container.is_none().then_some(counting),
        }
    }

    /// The group that the thread joins which starts the job's processes.
    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// The file in which the control group counts memory. Returns when this process is in it.
    pub async fn counted(&mut self) -> Option<PathBuf> {
        self.counting.take()?.await.ok()
    }

    /// The control group, once it is joined.
    pub fn get(&self) -> Option<&Group> {
        self.joined.get()
    }

    /// Leaves and removes them. Waits for the joining to be over: a job may be shorter than that.
    pub fn finish(self) {
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
        if let Some(group) = self.joined.get() {
            let _ = group.leave();
            let _ = fs::remove_dir(group.path());
        }
        if let Some(memory) = self.memory {
            memory.remove();
        }
    }
}

fn memory(folder: &Path, name: &str) -> Option<Memory> {
    let memory = Memory::make(name)?;
    let path = memory.path().as_os_str().as_encoded_bytes();
    let told = fs::write(folder.join(MEMORY_FILE), path);
    if told.is_err() {
        memory.remove();
    }
    told.ok().map(|()| memory)
}

/// Makes the control group and joins it. Whoever waits for its count is told at once where it has
/// none, by the end of the channel.
fn join(folder: &Path, name: &str, joined: &OnceLock<Group>, tell: oneshot::Sender<PathBuf>) {
    let Some(group) = Group::make(name) else {
        return;
    };
    let count = group.count();
    let tell = count.is_some().then_some(tell);
    let path = group.path().as_os_str().as_encoded_bytes();
    let told = fs::write(folder.join(GROUP_FILE), path);
    if told.is_err() || group.join().is_err() {
        let _ = fs::remove_dir(group.path());
        return;
    }
    let _ = joined.set(group);
    if let (Some(tell), Some(count)) = (tell, count) {
        // Nobody waits only when the shim is ending.
        let _ = tell.send(count);
    }
}
