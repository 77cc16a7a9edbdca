//! One attempt on a bench: a workspace, a shim, an order to stop, and what was seen.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use delta_agent::attempt::{self, Attempt, Begin, Happened, StateFolder, Watcher};
use delta_agent::log::progress::{Observer, Progress};
use delta_agent::work::{BaseEnvironment, Ended, Identity, StopOrder, Work};
use delta_core::time::{Millis, Span};
use delta_shim::handed_secrets::Handed;
use delta_shim::order::Abandoned;
use delta_shim::program::ShimProgram;
use delta_shim::sandbox::Confinement;
use delta_shim::step::Step;
use delta_shim::stop::StopReason;
use delta_wire::step::StepWhen;
use tokio::sync::watch;
use tokio::time::Instant;

/// Longer than any test here needs, shorter than a person's patience.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Bench {
    pub folder: tempfile::TempDir,
    pub state: StateFolder,
    pub work: Work,
    pub secrets: Handed,
    pub program: ShimProgram,
    /// How long the lease lasts unless it is renewed.
    pub ttl: Span,
    pub max_runtime: Span,
    pub stop: watch::Sender<Option<StopOrder>>,
    pub seen: Arc<Seen>,
}

/// Everything an observer was told, as text.
#[derive(Default)]
pub struct Seen {
    pub lines: Mutex<Vec<String>>,
    pub changed: tokio::sync::Notify,
}

impl Observer for Seen {
    fn progress(&self, progress: Progress<'_>) {
        let line = match progress {
            Progress::Started { job } => format!("started {}", job.job_name),
            Progress::Step {
                index, count, text, ..
            } => format!("step {index}/{count} {text}"),
            Progress::Output { line, .. } => format!("out {}", String::from_utf8_lossy(line)),
            Progress::Ended { ended, .. } => format!("ended {:?}", ended.outcome),
        };
        self.note(line);
    }
}

impl Seen {
    fn note(&self, line: String) {
        self.lines.lock().expect("no panic inside").push(line);
        self.changed.notify_waiters();
    }

    pub async fn wait_for(&self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let changed = self.changed.notified();
            if self
                .lines
                .lock()
                .expect("no panic inside")
                .iter()
                .any(|line| line == wanted)
            {
                return;
            }
            let told = tokio::time::timeout_at(deadline, changed).await;
            assert!(
                told.is_ok(),
                "never saw {wanted:?}: {:?}",
                self.lines.lock()
            );
        }
    }
}

const MAX_LINE: usize = 10_000;

/// Notes what a shim tells, line by line.
struct Told {
    seen: Arc<Seen>,
    open: Vec<u8>,
}

impl Watcher for Told {
    fn happened(&mut self, what: Happened<'_>) {
        match what {
            Happened::StepBegan { index } => self.seen.note(format!("began {index}")),
            Happened::StepEnded(record) => {
                let (index, code) = (record.index, record.exit_code);
                self.seen.note(format!("ended {index} {code:?}"));
            }
            Happened::Output(bytes) => {
                self.open.extend_from_slice(bytes);
                while let Some(end) = self.open.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.open.drain(..=end).collect();
                    let line = String::from_utf8_lossy(&line);
                    self.seen.note(format!("out {}", line.trim_end()));
                }
                // Nobody waits for a line of that length.
                self.open.truncate(MAX_LINE);
            }
        }
    }
}

pub fn shim_program() -> ShimProgram {
    ShimProgram {
        program: env!("CARGO_BIN_EXE_delta-agent-test-shim").into(),
        arguments: Vec::new(),
    }
}

/// A job's id that nothing else on this machine has: what a lost shim leaves is ended by that name,
/// whichever test it belongs to.
pub fn fresh_job_id() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("job_{}_{count}", std::process::id())
}

/// The clock that shims count on.
pub fn now() -> Millis {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Millis(now.tv_sec * 1000 + now.tv_nsec / 1_000_000)
}

impl Bench {
    pub fn new(steps: &[&str]) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["workspace", "tmp", "home"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let work = Work {
            identity: Identity {
                run_id: "run_1".into(),
                job_id: fresh_job_id(),
                job_name: "unit".into(),
                attempt: 2,
                lease_epoch: 7,
            },
            steps: steps
                .iter()
                .map(|step| Step {
                    script: (*step).to_owned(),
                    argv: None,
                    workdir: None,
                    goes_on: false,
                    name: None,
                    timeout: None,
                    when: StepWhen::Success,
                    env: Vec::new(),
                    shell: None,
                    failure_allowed: false,
                    report: None,
                })
                .collect(),
            env: Vec::new(),
            workspace: folder.path().join("workspace"),
            workdir: ".".into(),
            tmp: folder.path().join("tmp"),
            home: Some(folder.path().join("home")),
            base: BaseEnvironment::Clean { pass: Vec::new() },
            confinement: Confinement::OPEN,
            hidden: Vec::new(),
            control_group: true,
            container: None,
            log_quota: 1 << 20,
            log_dropped: 0,
            stop_grace: Duration::from_millis(300),
            leftover_grace: Duration::from_millis(300),
            silence: None,
        };
        Bench {
            state: StateFolder::open(&folder.path().join("state")).expect("a state folder"),
            folder,
            work,
            ttl: Span::secs(600),
            max_runtime: Span::secs(600),
            secrets: Handed::default(),
            program: shim_program(),
            stop: watch::Sender::new(None),
            seen: Arc::default(),
        }
    }

    pub fn start(&self) -> Attempt {
        self.start_that(Abandoned::GoesOn)
    }

    pub fn start_that(&self, abandoned: Abandoned) -> Attempt {
        let begin = Begin {
            program: &self.program,
            work: &self.work,
            until: now() + self.ttl,
            must_finish_by: now() + self.max_runtime,
            abandoned,
            note: b"a note",
            secrets: &self.secrets,
        };
        let draft = attempt::prepare(&self.state, self.state.number()).expect("a folder");
        draft.start(&begin, self.watcher()).expect("a shim")
    }

    pub fn watcher(&self) -> Box<dyn Watcher> {
        Box::new(Told {
            seen: Arc::clone(&self.seen),
            open: Vec::new(),
        })
    }

    pub async fn run(&self) -> Ended {
        let mut attempt = self.start();
        let ended = self.ended(&mut attempt).await;
        let log = self.folder.path().join("log");
        std::fs::copy(attempt.spool(), log).expect("a log");
        attempt.remains().remove();
        ended
    }

    /// Follows it to its end, passing on orders to stop.
    pub async fn ended(&self, attempt: &mut Attempt) -> Ended {
        let mut orders = self.stop.subscribe();
        orders.mark_changed();
        let following = async {
            loop {
                tokio::select! {
                    finished = attempt.ended() => return finished.ended,
                    Ok(()) = orders.changed() => {
                        if let Some(order) = *orders.borrow_and_update() {
                            attempt.stop(order);
                        }
                    }
                }
            }
        };
        let ended = tokio::time::timeout(PATIENCE, following).await;
        ended.expect("the attempt ends")
    }

    pub fn order(&self, reason: StopReason, grace: Duration) {
        self.stop.send_replace(Some(StopOrder {
            reason,
            kill_at: Instant::now() + grace,
        }));
    }

    pub fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).expect("a log")).into_owned()
    }

    pub fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.work.workspace.join(name))
            .expect(name)
            .trim()
            .to_owned()
    }
}

/// Whether a process with this number is running, zombies aside.
pub fn is_running(pid: &str) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest.trim_start());
    !state.starts_with(['Z', 'X'])
}

/// Waits until it is so.
pub async fn until(what: &str, reached: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
