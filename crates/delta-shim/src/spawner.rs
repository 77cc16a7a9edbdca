//! Starting the shells of a job from one thread that has given up what the job must not have:
//! children inherit it, and the rest of the shim stays as it is.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use delta_wire::Secret;
use rustix::process::Pid;
use tokio::sync::oneshot;

use crate::groups::memory_count::Memory;
use crate::order::Order;
use crate::sandbox::{Places, confine};

/// Where shells come from.
pub(crate) enum Spawner {
    Ready(mpsc::Sender<Request>),
    /// The job could not be confined as it must be, so nothing is started.
    Refusing(String),
}

pub(crate) struct Request {
    program: Program,
    /// Variables beside those of the job.
    env: Vec<(String, String)>,
    /// Where it starts, when not where the job does.
    directory: Option<PathBuf>,
    started: oneshot::Sender<io::Result<Pid>>,
}

/// Whether the job may be started at all, and then in which file its memory is counted, where it
/// joined a group for that.
pub(crate) type Readiness = Result<Option<PathBuf>, String>;

/// What is started.
pub(crate) enum Program {
    Script(String),
    /// A program and its arguments.
    Words(Vec<String>),
}

impl Spawner {
    /// Starts the thread. Everything that shells print goes into `output`. The second part tells,
    /// once, how the thread stands.
    pub fn start(
        order: &Order,
        secrets: Vec<(String, Secret)>,
        directory: PathBuf,
        hidden: Vec<PathBuf>,
        memory: Option<Memory>,
        output: io::PipeWriter,
    ) -> io::Result<(Spawner, oneshot::Receiver<Readiness>)> {
        let (requests, inbox) = mpsc::channel::<Request>();
        let (ready, readiness) = oneshot::channel();
        let confinement = order.confinement;
        let folders = [
            Some(&order.workspace),
            Some(&order.tmp),
            order.home.as_ref(),
        ];
        let writable: Vec<PathBuf> = folders.into_iter().flatten().map(PathBuf::from).collect();
        let env = order.env.clone();
        let work = move || {
            let places = Places {
                writable: &writable,
                hidden: &hidden,
            };
            // Before it gives up what it takes.
            let joined = memory.filter(|memory| memory.join().is_ok());
            let confined = confine(confinement, &places);
            let may_start = confined.is_ok();
            let confined = confined.map(|()| joined.map(|memory| memory.count()));
            // Nobody listens only when the shim is ending.
            let _ = ready.send(confined);
            if !may_start {
                return;
            }
            for request in inbox {
                let directory = request.directory.as_ref().unwrap_or(&directory);
                let user = confinement.user;
                let mut variables = env.clone();
                let own = request.env.iter();
                variables.extend(own.map(|(name, value)| (name.into(), value.into())));
                let program = &request.program;
                let begun = begin(program, &variables, &secrets, directory, user, &output);
                let _ = request.started.send(begun);
            }
        };
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(work)?;
        Ok((Spawner::Ready(requests), readiness))
    }

    /// Starts a process in a process group of its own.
    pub async fn spawn(
        &self,
        program: Program,
        env: Vec<(String, String)>,
        directory: Option<PathBuf>,
    ) -> io::Result<Pid> {
        let (started, start) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts processes is gone");
        let requests = match self {
            Spawner::Ready(requests) => requests,
            Spawner::Refusing(why) => return Err(io::Error::other(why.clone())),
        };
        let request = Request {
            program,
            env,
            directory,
            started,
        };
        requests.send(request).map_err(|_| gone())?;
        start.await.map_err(|_| gone())?
    }
}

fn begin(
    program: &Program,
    env: &[(OsString, OsString)],
    secrets: &[(String, Secret)],
    directory: &Path,
    user: Option<u32>,
    output: &io::PipeWriter,
) -> io::Result<Pid> {
    let mut command = match program {
        // The step is one argument, never part of another text: nothing in it is interpolated.
        Program::Script(script) => {
            let mut shell = Command::new("/bin/sh");
            shell.arg("-e").arg("-c").arg(script);
            shell
        }
        Program::Words(words) => {
            let (name, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
            let mut program = Command::new(name);
            program.args(arguments);
            program
        }
    };
    command
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .envs(secrets.iter().map(|(name, it)| (name, it.expose())))
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0);
    if let Some(user) = user {
        // Root's further groups are given up by this too.
        command.uid(user).gid(user);
    }
    // Never waited for through this: the shim reaps all its children itself.
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("a child without a number"))
}
