//! Child processes of a test: started, watched, paused and killed by pid.
//!
//! Output goes to files, so that a child never blocks on a pipe nobody reads, and what it said is
//! still there after kill -9. Every call blocks the calling thread only; a child that has been
//! reaped is never signalled, since its pid may be somebody else's by then.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::mortal_children::{self, Inherited};
pub use crate::port::free_port;
use crate::wait::Pace;

/// What of each output is shown when a wait fails or the test panics: enough for a backtrace.
const TAIL_LINES: usize = 40;

/// The workspace binary of this name beside the running test. Builds nothing.
pub fn binary(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("finding the running test")?;
    // Tests run from <target>/<profile>/deps, binaries lie one folder up.
    let folder = test
        .parent()
        .and_then(Path::parent)
        .context("the test lies in no folder")?;
    let file = folder.join(name);
    if !file.is_file() {
        bail!(
            "{} is not built; `cargo build --workspace --bins` makes it (`cargo xtask test` does)",
            file.display()
        );
    }
    Ok(file)
}

/// A process to be.
#[derive(Debug)]
pub struct Spawn {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    inherited: Inherited,
    folder: Option<PathBuf>,
    user: Option<u32>,
}

impl Spawn {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            inherited: Inherited::Everything,
            folder: None,
            user: None,
        }
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|one| one.as_ref().to_owned()));
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Only what [`Spawn::env`] names is in the child's environment.
    pub fn clean_env(mut self) -> Self {
        self.inherited = Inherited::Nothing;
        self
    }

    pub fn current_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// It becomes this user, with the group of the same number and no other. Only root may ask.
    pub fn user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Starts it with its output in files and stdin at the end of file. It is killed when the
    /// returned value is dropped, and when this process ends in whatever way.
    pub fn spawn(self) -> Result<Process> {
        let name = self
            .program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let output = tempfile::Builder::new()
            .prefix("delta-process-")
            .tempdir()?;
        let switch = match self.user {
            Some(user) => vec![
                format!("--reuid={user}"),
                format!("--regid={user}"),
                "--clear-groups".to_owned(),
            ],
            None => Vec::new(),
        };
        let switch: Vec<&str> = switch.iter().map(String::as_str).collect();
        let mut command =
            mortal_children::dying_with_us(&self.program, self.inherited, "KILL", &switch)?;
        command
            .args(self.arguments)
            .envs(self.environment)
            .stdin(Stdio::null());
        command.stdout(File::create(output.path().join("stdout"))?);
        command.stderr(File::create(output.path().join("stderr"))?);
        if let Some(folder) = self.folder {
            command.current_dir(folder);
        }
        let child = mortal_children::spawn(command).with_context(|| format!("starting {name}"))?;
        let pid = child.id();
        Ok(Process {
            name,
            pid,
            child: Mutex::new(child),
            output,
        })
    }
}

/// A running (or ended) child.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    child: Mutex<Child>,
    output: TempDir,
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The folder with the files `stdout` and `stderr`.
    pub fn output_folder(&self) -> &Path {
        self.output.path()
    }

    /// What it has written so far.
    pub fn stdout(&self) -> String {
        self.text("stdout")
    }

    /// What it has written so far.
    pub fn stderr(&self) -> String {
        self.text("stderr")
    }

    /// Its exit status, once it has ended.
    pub fn exited(&self) -> Option<ExitStatus> {
        self.lock().try_wait().ok().flatten()
    }

    pub fn is_running(&self) -> bool {
        self.exited().is_none()
    }

    /// The first whole line on stdout or stderr that contains `pattern`. Fails at the deadline,
    /// or as soon as the process has ended without saying it; the error shows what it did say.
    pub fn wait_for_line(&self, pattern: &str, deadline: Duration) -> Result<String> {
        let mut pace = Pace::new(deadline);
        loop {
            // Asked before looking: what was written before the end is then surely seen.
            let exited = self.exited();
            if let Some(line) = self.find_line(pattern) {
                return Ok(line);
            }
            if let Some(status) = exited {
                bail!(
                    "{} ended ({status}) before saying {pattern:?}{}",
                    self.name,
                    self.tail()
                );
            }
            match pace.next_pause() {
                Some(pause) => std::thread::sleep(pause),
                None => {
                    bail!(
                        "{} not saying {pattern:?} in {deadline:?}{}",
                        self.name,
                        self.tail()
                    )
                }
            }
        }
    }

    /// Waits for its end. At the deadline it is an error, and the process still runs.
    pub fn wait(&self, deadline: Duration) -> Result<ExitStatus> {
        let mut pace = Pace::new(deadline);
        loop {
            if let Some(status) = self.exited() {
                return Ok(status);
            }
            match pace.next_pause() {
                Some(pause) => std::thread::sleep(pause),
                None => bail!("{} still runs after {deadline:?}{}", self.name, self.tail()),
            }
        }
    }

    /// kill -9, and waits until it is gone.
    pub fn kill9(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.lock()
            .wait()
            .with_context(|| format!("waiting for the end of {}", self.name))?;
        Ok(())
    }

    /// SIGSTOP: it does nothing until [`Process::cont`]. Returns when every thread has stopped: the
    /// others go on until the first has taken the signal.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.is_stopped() && self.is_running() {
            anyhow::ensure!(Instant::now() < deadline, "{} does not stop", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        let mut tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid))
            .into_iter()
            .flatten()
            .flatten();
        tasks.all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The name of a thread may hold anything, a parenthesis too.
            let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
            state.is_none_or(|state| state.starts_with('T'))
        })
    }

    pub fn cont(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM: asks it to end. [`Process::wait`] tells whether it did.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Any other signal. One to a process that has ended does nothing.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = self.lock();
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = Pid::from_raw(self.pid as i32).context("a child has no pid 0")?;
        kill_process(pid, signal).with_context(|| format!("signalling {}", self.name))
    }

    fn lock(&self) -> MutexGuard<'_, Child> {
        self.child
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn text(&self, stream: &str) -> String {
        let bytes = fs::read(self.output.path().join(stream)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn find_line(&self, pattern: &str) -> Option<String> {
        [self.stdout(), self.stderr()].iter().find_map(|text| {
            text.split_inclusive('\n')
                .filter_map(|line| line.strip_suffix('\n'))
                .find(|line| line.contains(pattern))
                .map(str::to_owned)
        })
    }

    fn tail(&self) -> String {
        let mut shown = String::new();
        for stream in ["stdout", "stderr"] {
            let text = self.text(stream);
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(TAIL_LINES);
            shown.push_str(&format!(
                "\n--- {} {stream}:\n{}",
                self.name,
                lines[from..].join("\n")
            ));
        }
        shown
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing to do about an error: the parent-death signal is the second wall.
        let _ = self.kill9();
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
    }
}
