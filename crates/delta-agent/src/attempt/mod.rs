//! Attempts as the agent sees them: started in a shim of their own, followed, stopped, and found
//! again by the next agent (D7).
//!
//! Dropping an [`Attempt`] leaves its shim alone: that is what a crash does, and what a handover
//! does on purpose. Only [`Attempt::stop`], a deadline or the lease's local end stops the work.
//! What the agent itself needs to go on is kept beside the order as a note; its content is the
//! caller's business, and no job can read it.

mod lost_shim;
pub(crate) mod not_started;
pub(crate) mod run;
mod shim_client;
pub(crate) mod shim_events;
pub(crate) mod span;
pub(crate) mod spec;
mod state_folder;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use delta_core::time::{Millis, Span};
use delta_shim::handed_secrets::Handed;
use delta_shim::key::fresh_key;
use delta_shim::order::{
    Abandoned, Deadlines, Order, Record, SOCKET_FILE, SPOOL_FILE, State, StepRecord,
};
use delta_shim::processes::mark::Mark;
use delta_shim::program::ShimProgram;
use delta_shim::step::Step;
use delta_shim::stop::StopAt;
use delta_shim::{clock, report_archive};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub use self::shim_client::{Happened, Watcher};
use self::shim_client::{Orders, ShimClient};
pub use self::state_folder::StateFolder;
use crate::log::Sizes;
use crate::work::{Ended, StopOrder, Work, environment};

/// How long a place at a shim's door is waited for. It is there at once unless others crowd there,
/// and those get their turn by the thousand in a second.
const DIALLING: Duration = Duration::from_secs(10);

/// What an attempt begins with.
pub struct Begin<'a> {
    pub program: &'a ShimProgram,
    pub work: &'a Work,
    /// The lease's local end.
    pub until: Millis,
    pub must_finish_by: Millis,
    pub abandoned: Abandoned,
    pub note: &'a [u8],
    /// What neither the note nor the order may hold.
    pub secrets: &'a Handed,
}

/// An attempt in its shim, or the record of it.
pub struct Attempt {
    folder: PathBuf,
    orders: watch::Sender<Orders>,
    sizes: Sizes,
    link: AbortOnDropHandle<Record>,
}

/// An attempt that an earlier agent began.
pub struct Adopted {
    pub number: u64,
    pub note: Vec<u8>,
    pub standing: AdoptedState,
    pub steps: Vec<Step>,
    found: FoundShim,
}

enum FoundShim {
    Running(Box<Order>),
    Over(Box<Record>),
}

/// Where an adopted attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdoptedState {
    pub until: Millis,
    pub must_finish_by: Millis,
    /// Why it is being stopped or was stopped, and when it is killed.
    pub stop: Option<StopAt>,
    /// The step at work.
    pub step: Option<usize>,
}

/// How an attempt ended, and when.
#[derive(Debug)]
pub struct Finished {
    pub ended: Ended,
    pub started_at: String,
    pub finished_at: String,
    pub steps: Vec<StepRecord>,
}

/// An attempt before its work: a folder of its own, with the log that was begun. What is not begun
/// when the agent dies is nobody's; its lease runs out.
pub struct Draft {
    folder: PathBuf,
    sizes: Sizes,
}

/// What is left of an attempt on disk until its end is reported.
pub struct Remains(PathBuf);

impl Remains {
    /// Forgets it: log, order and note. Right once its end is reported, or nobody wants it.
    pub fn remove(&self) {
        state_folder::remove(&self.0);
    }
}

/// Makes the place of an attempt.
pub fn prepare(state: &StateFolder, number: u64) -> io::Result<Draft> {
    let folder = state.make(number)?;
    let draft = Draft {
        folder,
        sizes: Arc::new(watch::Sender::new(0)),
    };
    match state_folder::write_private(&draft.spool(), b"") {
        Ok(()) => Ok(draft),
        Err(problem) => {
            draft.remains().remove();
            Err(problem)
        }
    }
}

impl Draft {
    /// The file of the log.
    pub fn spool(&self) -> PathBuf {
        self.folder.join(SPOOL_FILE)
    }

    pub fn sizes(&self) -> Sizes {
        Arc::clone(&self.sizes)
    }

    pub fn remains(&self) -> Remains {
        Remains(self.folder.clone())
    }

    /// Starts the work in a shim, which goes on with the log where it is.
    pub fn start(&self, begin: &Begin<'_>, watcher: Box<dyn Watcher>) -> io::Result<Attempt> {
        let shown = *self.sizes.borrow();
        start_in(&self.folder, begin, watcher, shown, self.sizes())
    }
}

fn start_in(
    folder: &Path,
    begin: &Begin<'_>,
    watcher: Box<dyn Watcher>,
    shown: u64,
    sizes: Sizes,
) -> io::Result<Attempt> {
    let order = order(begin);
    state_folder::write(folder, begin.note, &order)?;
    // Ours first, so that it is there whenever the shim is; then it is the shim's alone.
    let listener = state_folder::in_reach(&folder.join(SOCKET_FILE), |path| {
        net::UnixListener::bind(path)
    })?;
    let mut stream = dial(folder)?;
    stream.write_all(&shim_client::hello_line(&order.key)?)?;
    let stream = asynchronous(stream)?;
    let mut command = Command::new(&begin.program.program);
    command
        .args(&begin.program.arguments)
        .arg(folder)
        // Nothing of ours: a variable that steers a program must not steer the shim.
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
        .stdout(if begin.secrets.is_empty() {
            Stdio::null()
        } else {
            Stdio::from(begin.secrets.to_memory()?)
        })
        .stderr(Stdio::null());
    // Left to run when this is dropped; reaped in the background while this agent lives.
    command.spawn()?;
    Ok(Attempt::followed(
        folder.to_owned(),
        Some(stream),
        order,
        watcher,
        shown,
        sizes,
    ))
}

/// Somebody may have lowered what this agent could mark with: told, as it cannot be mended here.
fn fresh_mark() -> Option<Mark> {
    let mark = Mark::fresh();
    if mark.is_none() {
        tracing::warn!(
            "the limit of file locks (ulimit -x) leaves no room for marks: what this job leaves \
             behind may not be found should its shim be lost; restart the agent"
        );
    }
    mark
}

fn order(begin: &Begin<'_>) -> Order {
    let work = begin.work;
    Order {
        boot: clock::boot(),
        key: fresh_key(),
        steps: work.steps.clone(),
        env: environment(work).into_iter().collect(),
        workspace: work.workspace.clone().into(),
        workdir: work.workdir.clone(),
        tmp: work.tmp.clone().into(),
        home: work.home.clone().map(OsString::from),
        confinement: work.confinement,
        hidden: work.hidden.iter().map(OsString::from).collect(),
        control_group: work.control_group,
        // What makes containers may leave something behind on purpose, for all of them.
        mark: work.container.is_none().then(fresh_mark).flatten(),
        container: work.container.clone(),
        log_quota: work.log_quota,
        log_dropped: work.log_dropped,
        stop_grace: work.stop_grace,
        leftover_grace: work.leftover_grace,
        silence: work.silence,
        deadlines: Deadlines {
            until: begin.until.0,
            must_finish_by: begin.must_finish_by.0,
        },
        abandoned: begin.abandoned,
        has_secrets: !begin.secrets.is_empty(),
    }
}

/// Finds every attempt of an earlier agent on this state folder. What cannot be gone on with is
/// ended and removed.
pub async fn adopt_all(state: &StateFolder) -> Vec<Adopted> {
    let mut adopted = Vec::new();
    for (number, folder) in state.attempts() {
        match adopt(number, &folder).await {
            Some(found) => adopted.push(found),
            None => state_folder::remove(&folder),
        }
    }
    adopted
}

async fn adopt(number: u64, folder: &Path) -> Option<Adopted> {
    // Nothing was begun without both.
    let (note, order) = state_folder::read(folder)?;
    if order.boot != clock::boot() {
        // Another boot: the processes are gone, and so is the clock that the lease was counted on.
        return None;
    }
    if let Some(record) = state_folder::read_record(folder) {
        return Some(Adopted::over(number, note, order, record));
    }
    match shim_client::greet(folder, &order.key).await {
        Some(state) => Some(Adopted {
            number,
            note,
            standing: AdoptedState::of(&state),
            steps: order.steps.clone(),
            found: FoundShim::Running(Box::new(order)),
        }),
        // It ended while we looked, or it is lost.
        None => {
            let record = match state_folder::read_record(folder) {
                Some(record) => record,
                None => lost_shim::bury(folder, &order, None).await,
            };
            Some(Adopted::over(number, note, order, record))
        }
    }
}

/// Connects, for a while if it must wait.
fn dial(folder: &Path) -> io::Result<net::UnixStream> {
    state_folder::in_reach(&folder.join(SOCKET_FILE), |path| {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(DIALLING))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(net::UnixStream::from(socket))
    })
}

fn asynchronous(stream: net::UnixStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

impl Adopted {
    fn over(number: u64, note: Vec<u8>, order: Order, record: Record) -> Adopted {
        let stop = record.stopped.map(|reason| StopAt {
            reason,
            kill_at: clock::now().0,
        });
        Adopted {
            number,
            note,
            standing: AdoptedState {
                until: record.deadlines.until(),
                must_finish_by: Millis(record.deadlines.must_finish_by),
                stop,
                step: record.step,
            },
            steps: order.steps,
            found: FoundShim::Over(Box::new(record)),
        }
    }

    /// Removes what nobody can go on with, unless it still runs.
    pub fn forget_if_over(&self, state: &StateFolder) {
        if let FoundShim::Over(_) = self.found {
            state_folder::remove(&state.folder(self.number));
        }
    }

    /// Goes on with it. What it printed so far is not shown again.
    pub fn resume(self, state: &StateFolder, watcher: Box<dyn Watcher>) -> Attempt {
        let folder = state.folder(self.number);
        match self.found {
            FoundShim::Running(order) => {
                let shown = std::fs::metadata(folder.join(SPOOL_FILE)).map_or(0, |it| it.len());
                let sizes = Arc::new(watch::Sender::new(shown));
                Attempt::followed(folder, None, *order, watcher, shown, sizes)
            }
            FoundShim::Over(record) => Attempt {
                orders: watch::Sender::new(Orders::default()),
                // More may have been written after the work had ended.
                sizes: Arc::new(watch::Sender::new(spool_length(&folder, &record))),
                folder,
                link: AbortOnDropHandle::new(tokio::spawn(async move { *record })),
            },
        }
    }
}

impl AdoptedState {
    fn of(state: &State) -> AdoptedState {
        AdoptedState {
            until: state.deadlines.until(),
            must_finish_by: Millis(state.deadlines.must_finish_by),
            stop: state.stop,
            step: state.step,
        }
    }
}

impl Attempt {
    fn followed(
        folder: PathBuf,
        stream: Option<UnixStream>,
        order: Order,
        watcher: Box<dyn Watcher>,
        shown: u64,
        sizes: Sizes,
    ) -> Attempt {
        let orders = watch::Sender::new(Orders::default());
        let link = ShimClient {
            folder: folder.clone(),
            order,
            orders: orders.subscribe(),
            sizes: Arc::clone(&sizes),
            shown,
            step: None,
            watcher,
        };
        Attempt {
            folder,
            orders,
            sizes,
            link: AbortOnDropHandle::new(tokio::spawn(link.follow(stream))),
        }
    }

    /// The folder with the reports that its tests left.
    pub(crate) fn reports(&self) -> PathBuf {
        self.folder.join(report_archive::FOLDER)
    }

    /// The file with what the job printed, byte for byte.
    pub fn spool(&self) -> PathBuf {
        self.folder.join(SPOOL_FILE)
    }

    /// Bytes in the spool, as it grows.
    pub fn sizes(&self) -> Sizes {
        Arc::clone(&self.sizes)
    }

    /// The lease was renewed: its local end is now here.
    pub fn extend(&self, until: Millis) {
        self.orders.send_if_modified(|orders| {
            let newer = orders.until.is_none_or(|old| until > old);
            if newer {
                orders.until = Some(until);
            }
            newer
        });
    }

    pub fn stop(&self, order: StopOrder) {
        let left = order.kill_at.saturating_duration_since(Instant::now());
        let left = Span(i64::try_from(left.as_millis()).unwrap_or(i64::MAX));
        let stop = StopAt {
            reason: order.reason,
            kill_at: (clock::now() + left).0,
        };
        self.orders.send_modify(|orders| orders.stop = Some(stop));
    }

    /// Waits for the end. May be dropped midway and asked again, but not after it answered.
    pub async fn ended(&mut self) -> Finished {
        let record = match (&mut self.link).await {
            Ok(record) => record,
            Err(problem) => {
                tracing::error!(error = %problem, "following a shim failed");
                let deadlines = Deadlines {
                    until: 0,
                    must_finish_by: 0,
                };
                lost_shim::record(&self.folder, deadlines, None)
            }
        };
        Finished {
            ended: Ended::of(&record),
            started_at: record.started_at,
            finished_at: record.finished_at,
            steps: record.steps,
        }
    }

    pub fn remains(&self) -> Remains {
        Remains(self.folder.clone())
    }
}

fn spool_length(folder: &Path, record: &Record) -> u64 {
    let length = std::fs::metadata(folder.join(SPOOL_FILE)).map(|it| it.len());
    length.unwrap_or(record.log.bytes)
}
