//! One attempt on a bench: a workspace, a log, an order to stop, and what was seen.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use delta_agent::executor::{
    BaseEnvironment, Ended, Identity, LogFile, StopOrder, StopReason, Work, execute,
};
use delta_agent::progress::{Observer, Progress};
use tokio::sync::watch;
use tokio::time::Instant;

/// Longer than any test here needs, shorter than a person's patience.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Bench {
    pub folder: tempfile::TempDir,
    pub work: Work,
    pub quota: u64,
    pub stop: watch::Sender<Option<StopOrder>>,
    pub seen: Seen,
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
        self.lines.lock().expect("no panic inside").push(line);
        self.changed.notify_waiters();
    }
}

impl Seen {
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

impl Bench {
    pub fn new(steps: &[&str]) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["workspace", "tmp"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let work = Work {
            identity: Identity {
                run_id: "run_1".into(),
                job_id: "job_1_1".into(),
                job_name: "unit".into(),
                attempt: 2,
                lease_epoch: 7,
            },
            steps: steps.iter().map(|step| (*step).to_owned()).collect(),
            env: Vec::new(),
            workspace: folder.path().join("workspace"),
            workdir: ".".into(),
            tmp: folder.path().join("tmp"),
            base: BaseEnvironment::Clean,
            leftover_grace: Duration::from_millis(300),
        };
        let stop = watch::Sender::new(None);
        Bench {
            folder,
            work,
            quota: 1 << 20,
            stop,
            seen: Seen::default(),
        }
    }

    pub async fn run(&self) -> Ended {
        let log = LogFile::create(&self.log_path(), self.quota).expect("a log");
        let running = execute(&self.work, log, self.stop.subscribe(), &self.seen);
        tokio::time::timeout(PATIENCE, running)
            .await
            .expect("the attempt ends")
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
