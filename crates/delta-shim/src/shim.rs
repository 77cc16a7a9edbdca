//! The life of one attempt inside its shim: what it waits for, what it obeys, how its end is
//! recorded.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use delta_core::Cause;
use delta_core::time::{Millis, Span};
use delta_wire::{Evidence, Secret};
use rustix::process::Pid;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::container::{Container, exit_status};
use crate::control::{Control, PeerMessage};
use crate::evidence::{self, OomWatch};
use crate::groups::joining::Joining;
use crate::groups::memory_count::Memory;
use crate::handed_secrets::Handed;
use crate::mask::Patterns;
use crate::order::{
    Abandoned, Command, Deadlines, Event, Order, RECORD_FILE, RESERVE_FILE, Record, SPOOL_FILE,
    State, StepRecord,
};
use crate::processes::tree;
use crate::spawner::{Readiness, Spawner};
use crate::spool::Spool;
use crate::step_execution::{StepEnd, Verdict};
use crate::stop::{StopAt, StopReason};
use crate::timer::Timer;
use crate::verdict::{Limits, Outcome, Stage, exited, out_of_memory, path_cause, stopped_at};
use crate::{clock, report_archive};

/// Bytes read at once: a pipe holds 64 KiB.
const READ_BYTES: usize = 64 * 1024;

/// Reads of one drain. A background process that prints without pause must not hold up the next
/// step; 256 full reads are 16 MiB, far more than the pipe can hold when its writer has ended.
const MAX_DRAIN_READS: usize = 256;

/// Bytes kept free for the record of the end, so that a job that fills the disk can still be told
/// of. A record with the timings of hundreds of steps fits.
const RESERVE: usize = 64 * 1024;

/// Bytes kept of what a container's first process printed: its complaint is at the end.
const MAX_SAID: usize = 4096;

/// How long the first word of the agent is waited for; it lies in the socket already.
const GREETING: Duration = Duration::from_secs(1);

/// Everything one attempt needs while it runs.
pub(crate) struct Shim {
    pub order: Order,
    pub spool: Spool,
    pub control: Control,
    pub spawner: Spawner,
    pub stop: Option<StopAt>,
    pub step: Option<usize>,
    pub steps: Vec<StepRecord>,
    pub step_deadline: Option<Millis>,
    /// When the running step is silent for too long; moved on by every byte.
    pub silent_at: Option<Millis>,
    pub oom: OomWatch,
    pub folder: PathBuf,
    /// Bytes of reports that may still be set aside.
    pub report_bytes: u64,
    pub group: Joining,
    /// Where the steps run, when that is a container.
    pub container: Option<Container>,
    /// The last of what the container's first process printed, for a sentence about its end.
    pub said: Vec<u8>,
    /// Children whose end somebody waits for, with it once it is there.
    watched: HashMap<Pid, Option<ExitStatus>>,
    deadlines: Deadlines,
    receiver: pipe::Receiver,
    buffer: Box<[u8; READ_BYTES]>,
    timer: Timer,
    children: Signal,
    terminate: Signal,
}

/// Carries out the order and writes the record.
pub(crate) async fn run(
    folder: &Path,
    order: Order,
    secrets: Handed,
    socket: UnixListener,
) -> io::Result<()> {
    let started_at = clock::wall_time();
    let mut spool = Spool::open(&folder.join(SPOOL_FILE), order.log_quota)?;
    spool.dropped_before(order.log_dropped);
    let masked = Patterns::of(secrets.masked.iter().map(Secret::expose));
    spool.mask(masked.map(Arc::new));
    let reserve = folder.join(RESERVE_FILE);
    fs::write(&reserve, vec![0; RESERVE])?;
    let mut control = Control::new(socket, order.key.clone())?;
    let (mut record, control, group) = match working_directory(&order) {
        Err((cause, summary)) => {
            spool.mark(&summary);
            let deadlines = order.deadlines;
            control.grew(spool.bytes());
            let record = refused(cause, summary, spool, deadlines);
            (record, control, Joining::default())
        }
        Ok(directory) => {
            let mut shim = Shim::new(folder, order, secrets.env, directory, spool, control).await?;
            shim.meet_the_agent().await;
            let verdict = match shim.begin_container().await {
                Ok(()) => shim.steps().await,
                Err(end) => shim.before_steps(end),
            };
            let removed = shim.end_container().await;
            let confirmed = shim.end_tree().await && removed;
            shim.conclude(verdict, confirmed)
        }
    };
    record.started_at = started_at;
    fs::remove_file(&reserve)?;
    write_record(folder, &record)?;
    let mut control = control;
    // The record is what counts; an agent that misses this finds it.
    control.send(&Event::Ended);
    group.finish();
    Ok(())
}

impl Shim {
    async fn new(
        folder: &Path,
        order: Order,
        secrets: Vec<(String, Secret)>,
        directory: PathBuf,
        spool: Spool,
        control: Control,
    ) -> io::Result<Shim> {
        // Before a group of our own is joined: see there.
        let shared = OomWatch::shared();
        let mut group = Joining::start(folder, &order);
        let work = Workplace::open(folder, &order, secrets, directory, group.memory().cloned())?;
        let children = signal(SignalKind::child())?;
        let terminate = signal(SignalKind::terminate())?;
        let mut counted = group.counted().await;
        let mut shim = Shim {
            deadlines: order.deadlines,
            order,
            spool,
            control,
            spawner: work.spawner,
            stop: None,
            step: None,
            steps: Vec::new(),
            step_deadline: None,
            silent_at: None,
            oom: shared,
            folder: folder.to_owned(),
            report_bytes: report_archive::MAX_BYTES,
            group,
            container: work.container,
            said: Vec::new(),
            watched: HashMap::new(),
            receiver: work.receiver,
            buffer: Box::new([0; READ_BYTES]),
            timer: Timer::new()?,
            children,
            terminate,
        };
        if let Some(ready) = work.ready {
            match ready.await.unwrap_or_else(|_| Err("no thread".to_owned())) {
                Ok(count) => counted = counted.or(count),
                Err(why) => shim.spawner = Spawner::Refusing(why),
            }
        }
        shim.oom = counted.map_or(shim.oom, OomWatch::own);
        Ok(shim)
    }

    /// The end of this child is wanted.
    pub fn watch(&mut self, pid: Pid) {
        self.watched.insert(pid, None);
    }

    pub fn unwatch(&mut self, pid: Pid) {
        self.watched.remove(&pid);
    }

    /// Takes the ends of all children that ended. True when there is no child any more, and so no
    /// descendant.
    pub fn take_ends(&mut self) -> bool {
        let reaped = tree::reap();
        for (pid, status) in reaped.ended {
            let status = exit_status(status);
            if let Some(container) = &mut self.container {
                container.note(pid, status);
            }
            if let Some(end) = self.watched.get_mut(&pid) {
                *end = Some(status);
            }
        }
        reaped.none_left
    }

    /// How a child that is watched ended, once.
    pub fn end_of(&mut self, pid: Pid) -> Option<ExitStatus> {
        self.take_ends();
        let status = (*self.watched.get(&pid)?)?;
        self.watched.remove(&pid);
        Some(status)
    }

    /// The agent said hello before the shim was there: it is to see everything from the first step
    /// on. One that died meanwhile is not waited for.
    async fn meet_the_agent(&mut self) {
        if let Ok(heard) = tokio::time::timeout(GREETING, self.control.hear()).await {
            self.obey(heard);
        }
    }

    /// Waits until anything happens, at the latest at `wake`, and deals with it. Ends of children
    /// are for the caller to reap.
    pub async fn turn(&mut self, wake: Option<Millis>) {
        let deadline = self.next_deadline();
        let wake = wake.map_or(deadline, |wake| wake.min(deadline));
        tokio::select! {
            biased;
            heard = self.control.hear() => self.obey(heard),
            _ = self.children.recv() => {}
            _ = self.terminate.recv() => self.stop_with_grace(StopReason::Shutdown),
            () = self.timer.at(wake) => {}
            _ = self.receiver.readable() => {
                self.read_once();
            }
            () = speaks(self.container.as_ref()) => self.listen(),
        }
        self.keep_deadlines();
    }

    fn obey(&mut self, heard: PeerMessage) {
        match heard {
            PeerMessage::Hello(peer) => {
                let state = State {
                    bytes: self.spool.bytes(),
                    step: self.step,
                    steps: self.steps.clone(),
                    deadlines: self.deadlines,
                    stop: self.stop,
                };
                self.control.send_to(peer, &Event::State(state));
            }
            // An agent's word only ever stretches the time: its words may arrive out of turn.
            PeerMessage::Command(Command::Extend { until }) => {
                self.deadlines.until = self.deadlines.until.max(until);
            }
            PeerMessage::Command(Command::Stop(stop)) => self.stop(stop),
            PeerMessage::Command(Command::Hello { .. } | Command::Unknown(_)) => {}
            PeerMessage::Alone if self.order.abandoned == Abandoned::Ends => self.stop(StopAt {
                reason: StopReason::Shutdown,
                kill_at: clock::now().0,
            }),
            PeerMessage::Alone => {}
        }
    }

    fn stop(&mut self, order: StopAt) {
        self.stop = Some(StopAt::stricter(self.stop, order));
    }

    fn stop_with_grace(&mut self, reason: StopReason) {
        let grace = i64::try_from(self.order.stop_grace.as_millis()).unwrap_or(0);
        let kill_at = (clock::now() + Span(grace)).0;
        self.stop(StopAt { reason, kill_at });
    }

    fn next_deadline(&self) -> Millis {
        let until = self.deadlines.until();
        match self.stop {
            Some(stop) if stop.reason == StopReason::LeaseLost => Millis::FAR,
            Some(_) => until,
            None => until
                .min(Millis(self.deadlines.must_finish_by))
                .min(self.step_deadline.unwrap_or(Millis::FAR))
                .min(self.silent_at.unwrap_or(Millis::FAR)),
        }
    }

    /// Time alone may end the right to work (F8, F30).
    fn keep_deadlines(&mut self) {
        let now = clock::now();
        let lost = self
            .stop
            .is_some_and(|it| it.reason == StopReason::LeaseLost);
        if now >= self.deadlines.until() && !lost {
            self.stop(StopAt {
                reason: StopReason::LeaseLost,
                kill_at: now.0,
            });
        } else if self.stop.is_none() {
            if self.silent_at.is_some_and(|at| now >= at) {
                // What was printed in time may lie in the pipe still.
                self.drain();
            }
            if let Some(reason) = self.overdue(now) {
                self.stop_with_grace(reason);
            }
        }
    }

    /// The first clock that ran out, whenever that was noticed.
    fn overdue(&self, now: Millis) -> Option<StopReason> {
        let clocks = [
            (
                Some(Millis(self.deadlines.must_finish_by)),
                StopReason::TimedOut,
            ),
            (self.step_deadline, StopReason::StepTimedOut),
            (self.silent_at, StopReason::Silent),
        ];
        let out = clocks
            .into_iter()
            .filter_map(|(at, reason)| Some((at?, reason)));
        let first = out.filter(|(at, _)| now >= *at).min_by_key(|(at, _)| *at);
        first.map(|(_, reason)| reason)
    }

    /// Takes what is in the pipe, once.
    fn read_once(&mut self) {
        if let Ok(count) = self.receiver.try_read(&mut self.buffer[..]) {
            self.printed(count);
        }
    }

    fn printed(&mut self, count: usize) {
        if self.silent_at.is_some() {
            self.silent_at = self.silent_from_now();
        }
        self.spool.output(&self.buffer[..count]);
        self.control.grew(self.spool.bytes());
    }

    /// Takes what the container's first process prints.
    fn listen(&mut self) {
        let Some(container) = &mut self.container else {
            return;
        };
        let heard = container.hear();
        self.said.extend_from_slice(&heard);
        let most = self.said.len().saturating_sub(MAX_SAID);
        self.said.drain(..most);
        self.show(&heard);
    }

    /// Bytes that are no step's, and yet nobody's line of ours.
    pub fn show(&mut self, bytes: &[u8]) {
        self.spool.output(bytes);
        self.control.grew(self.spool.bytes());
    }

    /// Takes everything that ended processes left in the pipe. From the pipe itself: the runtime
    /// says that it is empty until it has looked again, and by then the step is over.
    pub fn drain(&mut self) {
        for _ in 0..MAX_DRAIN_READS {
            let read = || rustix::io::read(&self.receiver, &mut self.buffer[..]);
            match rustix::io::retry_on_intr(read) {
                Ok(0) | Err(_) => return,
                Ok(count) => self.printed(count),
            }
        }
    }

    /// What the job printed last is not continued: what is held back of it is the job's, still.
    pub fn release(&mut self) {
        self.spool.release(&mut |_| {});
        self.control.grew(self.spool.bytes());
    }

    /// Tells that the spool up to here is ours.
    pub fn marked(&mut self) {
        self.control.send(&Event::Mark(self.spool.bytes()));
    }

    /// When a step that prints nothing from now on is silent for too long.
    pub fn silent_from_now(&self) -> Option<Millis> {
        let silence = self.order.silence?;
        let silence = i64::try_from(silence.as_millis()).unwrap_or(i64::MAX / 2);
        Some(clock::now() + Span(silence))
    }

    /// What can be seen of a failure, now.
    pub fn evidence(&self) -> Evidence {
        let workspace = Path::new(&self.order.workspace);
        evidence::gather(workspace, &self.spool, &self.oom)
    }

    /// What a step may take, and how long it may be silent.
    fn limits(&self, step: Option<usize>) -> Limits {
        let step = step.and_then(|index| self.order.steps.get(index));
        Limits {
            step: step.and_then(|step| step.timeout),
            silence: self.order.silence,
        }
    }

    fn conclude(mut self, verdict: Verdict, confirmed: bool) -> (Record, Control, Joining) {
        self.drain();
        self.release();
        let number = verdict.step.map_or(0, |index| index + 1);
        let making = self
            .container
            .is_some()
            .then_some("the making of its container");
        let stage = verdict
            .step
            .map_or(Stage::Before(making), |_| Stage::Step(number));
        let mut stopped = None;
        let says_nothing = verdict.says_nothing();
        let limits = self.limits(verdict.step);
        let mut evidence = verdict.evidence;
        let (outcome, cause, mut summary) = match verdict.end {
            StepEnd::AllDone => {
                let summary = match self.order.steps.len() {
                    1 => "1 step succeeded".to_owned(),
                    count => format!("{count} steps succeeded"),
                };
                (Outcome::Succeeded, None, summary)
            }
            StepEnd::Exited(status) => exited(status, number, &mut evidence),
            StepEnd::OutOfMemory {
                status,
                kills,
                own,
                limit,
            } => out_of_memory(status, number, kills, own, limit, &mut evidence),
            StepEnd::NotStarted(cause, summary) => {
                (Outcome::Failed { exit_code: None }, Some(cause), summary)
            }
            StepEnd::Stopped(reason) => {
                stopped = Some(reason);
                stopped_at(reason, stage, limits)
            }
        };
        if says_nothing {
            summary.push_str("; it printed nothing");
        }
        if outcome != Outcome::Succeeded {
            self.spool.mark(&summary);
        }
        if !confirmed {
            self.spool.mark("a process of this job could not be ended");
        }
        self.marked();
        let record = Record {
            outcome,
            cause: cause.map(|cause| cause.name().to_owned()),
            summary,
            step: verdict.step,
            stopped,
            confirmed,
            log: self.spool.finish(),
            started_at: String::new(),
            finished_at: clock::wall_time(),
            steps: self.steps,
            deadlines: self.deadlines,
            evidence,
        };
        (record, self.control, self.group)
    }
}

/// Returns when the first process of a container says something.
async fn speaks(container: Option<&Container>) {
    match container.and_then(Container::chatter) {
        Some(chatter) => drop(chatter.readable().await),
        None => std::future::pending().await,
    }
}

/// Where the steps will run, and where what they print is read.
struct Workplace {
    spawner: Spawner,
    /// Tells, once, whether the job may be started at all.
    ready: Option<oneshot::Receiver<Readiness>>,
    receiver: pipe::Receiver,
    container: Option<Container>,
}

impl Workplace {
    fn open(
        folder: &Path,
        order: &Order,
        secrets: Vec<(String, Secret)>,
        directory: PathBuf,
        memory: Option<Memory>,
    ) -> io::Result<Workplace> {
        if let Some(wanted) = &order.container {
            let workspace = Path::new(&order.workspace);
            let (mut container, receiver) = Container::new(folder, wanted, workspace, &directory)?;
            container.secrets = secrets;
            return Ok(Workplace {
                spawner: Spawner::Refusing("the steps run in a container".to_owned()),
                ready: None,
                receiver,
                container: Some(container),
            });
        }
        if let Some(mark) = order.mark {
            // Never required: where it cannot be put, what is left is found by less.
            let _ = mark.put();
        }
        let (reader, writer) = io::pipe()?;
        let hidden = order.hidden.iter().map(PathBuf::from).collect();
        let (spawner, ready) = Spawner::start(order, secrets, directory, hidden, memory, writer)?;
        Ok(Workplace {
            spawner,
            ready: Some(ready),
            receiver: pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?,
            container: None,
        })
    }
}

fn refused(cause: Cause, summary: String, spool: Spool, deadlines: Deadlines) -> Record {
    Record {
        outcome: Outcome::Failed { exit_code: None },
        cause: Some(cause.name().to_owned()),
        summary,
        step: None,
        stopped: None,
        confirmed: true,
        log: spool.finish(),
        started_at: String::new(),
        finished_at: clock::wall_time(),
        steps: Vec::new(),
        deadlines,
        evidence: Evidence::default(),
    }
}

/// The folder steps start in. It must exist and, links resolved, lie inside the workspace.
fn working_directory(order: &Order) -> Result<PathBuf, (Cause, String)> {
    folder_inside(order, &order.workdir)
}

/// A folder of the workspace. That there is no such folder is the job's mistake; that there is no
/// workspace, or that the disk cannot be read, is this machine's.
pub(crate) fn folder_inside(order: &Order, workdir: &str) -> Result<PathBuf, (Cause, String)> {
    let root = Path::new(&order.workspace)
        .canonicalize()
        .map_err(|problem| {
            let summary = format!("the workspace cannot be entered: {problem}");
            (Cause::StartUp, summary)
        })?;
    let directory = root.join(workdir).canonicalize().map_err(|problem| {
        let summary = format!("the workdir {workdir:?} cannot be entered: {problem}");
        (path_cause(&problem), summary)
    })?;
    let refused = |why: &str| Err((Cause::SpecError, format!("the workdir {workdir:?} {why}")));
    if !directory.starts_with(&root) {
        return refused("leaves the workspace");
    }
    if !directory.is_dir() {
        return refused("is not a folder");
    }
    Ok(directory)
}

/// Whole or not at all. Not synced: nobody goes on with anything of another boot.
fn write_record(folder: &Path, record: &Record) -> io::Result<()> {
    let (path, draft) = (folder.join(RECORD_FILE), folder.join("end.draft"));
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&draft)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    fs::rename(draft, path)
}
