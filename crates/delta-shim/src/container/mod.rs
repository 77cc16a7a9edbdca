//! Steps in a container (the reasons are in docs/adr/0016).
//!
//! One container for the attempt, whose first process does nothing but wait for the end of its
//! input, which this shim holds: a shim that is killed takes the container with it. Each step is a
//! shell that the container program starts inside, fed with its variables and its script through
//! its standard input. Everything the steps print goes into a pipe of ours that lies in the
//! container as a file, so that the log is read as it is for processes: in order, to the last
//! byte, and from what runs in the background too.
//!
//! What has a name here has the attempt's label too; whoever finds it without its shim removes it.

mod arguments;
mod calls;
mod ending;
mod kernel_log;
mod leftovers;
mod memory;
mod order;
mod readiness;
mod refusal;
mod runtime;
mod script;
mod starting;
mod verdict;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, PipeWriter};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use delta_core::Cause;
use delta_wire::Secret;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Pid;
use tokio::net::unix::pipe;

use self::arguments::Names;
pub(crate) use self::calls::exit_status;
use self::calls::{Call, Calling, NoAnswer, Waiting};
use self::kernel_log::KernelLog;
pub use self::leftovers::{clear_attempt, clear_others};
pub use self::order::{
    ContainerOrder, HOME, KEPT, Mount, Network, OWN_FOLDER, Pull, Ready, Service, Sign, TMP,
    WORKSPACE, attempt_label,
};
pub use self::runtime::{Kind, Runtime};
use self::verdict::ContainerState;
use crate::evidence::kills_on_this_machine;
use crate::key::fresh_key;
use crate::shim::Shim;
use crate::step_execution::{StepEnd, no_shell};
use crate::stop::StopAt;

/// The pipe in the attempt's state folder.
const PIPE_FILE: &str = "pipe";

/// A job can write into its log, and do nothing else with it.
const WRITE_ONLY: u32 = 0o222;

/// Bytes kept of what the first process prints, for a sentence when it ends too early.
const MAX_CHATTER: usize = 16 * 1024;

/// The containers of one attempt.
pub(crate) struct Container {
    order: ContainerOrder,
    names: Names,
    pipe: PathBuf,
    /// Where steps start, inside.
    workdir: PathBuf,
    /// What the first process says when it is there.
    key: String,
    main: Option<Main>,
    /// The first processes of the containers, as far as they could be found on this machine.
    inits: Vec<OwnedFd>,
    /// Services that were started.
    services: Vec<String>,
    has_network: bool,
    /// What the program calls the job's container, once it is there.
    id: Option<String>,
    /// Processes that the kernel had ended on this machine when the step or the making of the
    /// containers began, and its log from then on.
    killed_before: Option<u64>,
    kernel_log: Option<KernelLog>,
    /// Variables of the steps that no file and no argument may hold.
    pub secrets: Vec<(String, Secret)>,
}

/// The job's container while the program that started it is there.
struct Main {
    pid: Pid,
    ended: Option<ExitStatus>,
    /// Its end is the container's end.
    input: Option<PipeWriter>,
    output: Option<pipe::Receiver>,
    chatter: Vec<u8>,
    /// The number of the first process inside, once it is there.
    holder: Option<String>,
}

impl Container {
    /// Makes the pipe. What is read from it is the job's log.
    pub fn new(
        folder: &Path,
        order: &ContainerOrder,
        workspace: &Path,
        directory: &Path,
    ) -> io::Result<(Container, pipe::Receiver)> {
        let path = folder.join(PIPE_FILE);
        mkfifoat(CWD, &path, Mode::from_raw_mode(0o600))?;
        // For both, so that it never seems to have ended.
        let receiver = pipe::OpenOptions::new()
            .read_write(true)
            .open_receiver(&path)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(WRITE_ONLY);
        fs::set_permissions(&path, mode)?;
        let number = folder.file_name().unwrap_or_default().to_string_lossy();
        let root = workspace.canonicalize()?;
        let inner = directory.strip_prefix(&root).unwrap_or(Path::new(""));
        let container = Container {
            names: Names::of(&order.owner, &number),
            order: order.clone(),
            pipe: path,
            workdir: Path::new(WORKSPACE).join(inner),
            // Not the shim's own: this one is seen in the container and in lists of processes.
            key: fresh_key(),
            main: None,
            inits: Vec::new(),
            services: Vec::new(),
            has_network: false,
            id: None,
            killed_before: None,
            kernel_log: None,
            secrets: Vec::new(),
        };
        Ok((container, receiver))
    }

    /// Notes the end of a child when it is the one that matters here.
    pub fn note(&mut self, pid: Pid, status: ExitStatus) {
        if let Some(main) = self.main.as_mut().filter(|main| main.pid == pid) {
            main.ended = Some(status);
        }
    }

    /// Where the first process's words come from.
    pub fn chatter(&self) -> Option<&pipe::Receiver> {
        self.main.as_ref()?.output.as_ref()
    }

    /// Takes the first process's words. All but the one that says it is there belong into the log.
    pub fn hear(&mut self) -> Vec<u8> {
        let Some(main) = &mut self.main else {
            return Vec::new();
        };
        let mut buffer = [0; 4096];
        let Some(output) = &main.output else {
            return Vec::new();
        };
        let heard = match output.try_read(&mut buffer) {
            Ok(0) => {
                main.output = None;
                return std::mem::take(&mut main.chatter);
            }
            Ok(count) => &buffer[..count],
            Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => return Vec::new(),
            Err(_) => {
                main.output = None;
                return Vec::new();
            }
        };
        if main.holder.is_some() {
            return heard.to_vec();
        }
        main.chatter.extend_from_slice(heard);
        main.look_for(&self.key)
    }

    /// From here on: what the kernel ended before is no concern of what begins now.
    fn watch_memory(&mut self) {
        self.kernel_log = KernelLog::from_now();
        self.killed_before = kills_on_this_machine();
    }

    fn log(&self) -> io::Result<File> {
        File::options().write(true).open(&self.pipe)
    }
}

impl Main {
    /// Whole lines up to the one with the key are the job's log; that one is ours.
    fn look_for(&mut self, key: &str) -> Vec<u8> {
        let mut shown = Vec::new();
        let mut rest = 0;
        while let Some(end) = self.chatter[rest..].iter().position(|byte| *byte == b'\n') {
            let line = &self.chatter[rest..=rest + end];
            rest += end + 1;
            let text = String::from_utf8_lossy(line);
            match text.strip_prefix(key) {
                Some(number) => {
                    self.holder = Some(number.trim().to_owned());
                    shown.extend_from_slice(&self.chatter[rest..]);
                    self.chatter.clear();
                    return shown;
                }
                None => shown.extend_from_slice(line),
            }
        }
        // The line at its end may yet be ours; one that long is not.
        if self.chatter.len() - rest > MAX_CHATTER {
            shown.extend_from_slice(&self.chatter[rest..]);
            rest = self.chatter.len();
        }
        self.chatter.drain(..rest);
        shown
    }
}

impl Shim {
    /// A step's shell inside the container.
    pub(crate) fn step_in_container(
        &mut self,
        script: &str,
        shell: Option<&[String]>,
        own: &[(String, String)],
    ) -> io::Result<Calling> {
        let Some(container) = &mut self.container else {
            return Err(io::Error::other("there is no container"));
        };
        container.watch_memory();
        let own = own.iter().map(|(name, value)| (name.into(), value.into()));
        let secrets = container.secrets.iter();
        let secrets = secrets.map(|(name, it)| (name.into(), it.expose().into()));
        let env: Vec<(OsString, OsString)> = self
            .order
            .env
            .iter()
            .cloned()
            .chain(own)
            .chain(secrets)
            .collect();
        let mut call = Call::new(arguments::step(&container.names, &container.workdir));
        // The one place where variables enter: through the input, and nowhere else.
        call.input = script::step(&env, script, shell);
        let calling = Calling::start(&container.order.runtime, call)?;
        self.watch(calling.pid);
        Ok(calling)
    }

    /// What the end of a step's shell means.
    pub(crate) async fn judge(
        &mut self,
        calling: Calling,
        status: ExitStatus,
        shell: Option<&String>,
    ) -> StepEnd {
        let called = calling.ended(status);
        let mut answer = script::answer(&called.text);
        if let Some(shell) = shell.filter(|_| answer.no_shell) {
            let number = self.step.map_or(0, |index| index + 1);
            let summary = format!("step {number}: {}", no_shell(shell, "the image"));
            return StepEnd::NotStarted(Cause::SpecError, summary);
        }
        let mut standing = ContainerState::Stands;
        if answer.code.is_none() {
            // It was ended itself, perhaps for want of memory: somebody else looks.
            match self.kills_now().await {
                Some(now) => answer = script::answer(&format!("{}{now}", called.text)),
                None => standing = self.standing(answer.killed_before).await,
            }
        }
        if answer.counted {
            // What the kernel ended elsewhere on this machine is not this job's.
            self.oom.dismiss();
        }
        match verdict::step(&answer, status, &called.complaint, standing) {
            verdict::Ended::Exited(status) => StepEnd::Exited(status),
            verdict::Ended::OutOfMemory { status, kills, own } => {
                let limit = self.memory_limit();
                StepEnd::OutOfMemory {
                    status,
                    kills,
                    own,
                    limit,
                }
            }
            verdict::Ended::Lost(why) => {
                let what = match standing {
                    ContainerState::Gone => "the container was ended from outside",
                    _ => "the container program failed",
                };
                let said = if why.is_empty() { "" } else { ": " };
                StepEnd::NotStarted(Cause::AgentError, format!("{what}{said}{why}"))
            }
        }
    }

    /// What the container says of its memory, as a step's shell would; nothing when no shell can be
    /// had in it any more.
    async fn kills_now(&mut self) -> Option<String> {
        let container = self.container.as_ref()?;
        let runtime = container.order.runtime.clone();
        let mut call = Call::new(arguments::step(&container.names, Path::new("/")));
        call.input = script::kills();
        let called = self
            .call(&runtime, call, Waiting::AWhileUnlessStopped)
            .await;
        let called = called.ok().filter(|called| called.status.success());
        // A shell that could not read it says nothing, and ends well.
        let said = called.map(|called| called.text);
        said.filter(|text| !text.is_empty())
    }

    /// The program that stands for the container has ended, and so has the container.
    fn main_ended(&self) -> bool {
        let main = self.container.as_ref().and_then(|it| it.main.as_ref());
        main.is_some_and(|main| main.ended.is_some())
    }

    /// Asks everything in the container to end; nobody waits for the asking.
    pub(crate) fn ask_container_to_end(&mut self) {
        let Some(container) = &self.container else {
            return;
        };
        let holder = container.main.as_ref().and_then(|it| it.holder.as_ref());
        if let Some(holder) = holder {
            let words = arguments::sweep(&container.names, holder, "-TERM");
            // Whoever is not asked is killed.
            let _ = Calling::start(&container.order.runtime, Call::new(words));
        }
    }

    /// A line of ours in the log.
    pub(crate) fn say(&mut self, text: &str) {
        self.drain();
        self.spool.mark(text);
        self.marked();
    }
}

/// No answer where there should be one.
fn unanswered(no: NoAnswer, stop: Option<StopAt>) -> StepEnd {
    match (no, stop) {
        (NoAnswer::Stopped, Some(stop)) => StepEnd::Stopped(stop.reason),
        (NoAnswer::NotStarted(problem), _) => {
            let summary = format!("the container program cannot be started: {problem}");
            StepEnd::NotStarted(Cause::StartUp, summary)
        }
        (NoAnswer::Stopped | NoAnswer::TooLate, _) => {
            let summary = "no container can be made, the daemon does not answer".to_owned();
            StepEnd::NotStarted(Cause::StartUp, summary)
        }
    }
}
