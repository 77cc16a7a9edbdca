//! A real dockerd of a test's own: its socket, images and containers in a temporary folder, with no
//! registry and no network of its own.
//!
//! It must be root. Its one image is made of this machine's static busybox. It is told to end when
//! the test process ends in whatever way, and ends its containers first.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::mortal_children::{self, Inherited};
use crate::wait::Pace;

/// A start takes a second or two; two of them on a busy machine take longer.
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// What an end may take before the daemon is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// The image every test daemon has: a shell and the usual small programs, and no user but root.
pub const IMAGE: &str = "box:1";

/// A running (or stopped) daemon.
#[derive(Debug)]
pub struct Docker {
    folder: TempDir,
    daemon: Mutex<Option<Child>>,
    /// Arguments beside the usual ones.
    further: Vec<String>,
}

impl Docker {
    /// Starts a daemon and makes its image.
    pub fn start() -> Result<Docker> {
        Docker::start_in(&std::env::temp_dir())
    }

    /// Starts a daemon with all that is its own below this folder, and makes its image.
    pub fn start_in(place: &Path) -> Result<Docker> {
        Docker::begin(place, &[])
    }

    /// One that makes images and no container: the program that starts containers is not there.
    pub fn start_without_runtime() -> Result<Docker> {
        let further = ["--add-runtime", "gone=/nonexistent/runtime"];
        let further = [&further[..], &["--default-runtime", "gone"]].concat();
        Docker::begin(&std::env::temp_dir(), &further)
    }

    fn begin(place: &Path, further: &[&str]) -> Result<Docker> {
        let folder = tempfile::Builder::new()
            .prefix("delta-docker-")
            .tempdir_in(place)?;
        let docker = Docker {
            folder,
            daemon: Mutex::new(None),
            further: further
                .iter()
                .map(|further| (*further).to_owned())
                .collect(),
        };
        docker.start_daemon()?;
        docker.make_image()?;
        Ok(docker)
    }

    /// Starts it again after [`Docker::stop`], with the same images.
    pub fn start_daemon(&self) -> Result<()> {
        let program = program("dockerd", "docker.io")?;
        let mut command =
            mortal_children::dying_with_us(&program, Inherited::Everything, "TERM", &[])?;
        let place = |name: &str| self.folder.path().join(name).display().to_string();
        command
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .args([
                "--storage-driver=vfs",
                "--default-ulimit=nofile=20000:20000",
            ])
            .args(["--data-root", &place("data"), "--exec-root", &place("exec")])
            .args(["--host", &self.host(), "--pidfile", &place("pid")])
            .args(["--shutdown-timeout", "2"])
            .args(&self.further)
            .stdin(Stdio::null())
            .stdout(File::create(self.folder.path().join("log"))?)
            .stderr(File::create(self.folder.path().join("log.err"))?);
        *self.lock() = Some(mortal_children::spawn(command).context("starting dockerd")?);
        let mut pace = Pace::new(READY_DEADLINE);
        while self.run(&["version"]).is_err() {
            match pace.next_pause() {
                Some(pause) => std::thread::sleep(pause),
                None => bail!("dockerd is not ready: {}", self.said()),
            }
        }
        Ok(())
    }

    /// The daemon's address, as `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    /// Ends the daemon; its containers end with it.
    pub fn stop(&self) {
        let Some(mut child) = self.lock().take() else {
            return;
        };
        signal(&child, Signal::TERM);
        let mut pace = Pace::new(STOP_DEADLINE);
        while let Ok(None) = child.try_wait() {
            match pace.next_pause() {
                Some(pause) => std::thread::sleep(pause),
                None => {
                    let _ = child.kill();
                }
            }
        }
        let _ = child.wait();
    }

    /// The daemon answers nobody until [`Docker::wake`], as one that hangs.
    pub fn freeze(&self) {
        if let Some(child) = &*self.lock() {
            signal(child, Signal::STOP);
        }
    }

    pub fn wake(&self) {
        if let Some(child) = &*self.lock() {
            signal(child, Signal::CONT);
        }
    }

    /// What a command of the client printed; an error when it failed.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(arguments)?.output()?;
        finished(arguments, &output)
    }

    /// Every container and network that is labelled by an agent, running or not.
    pub fn labelled(&self) -> Result<Vec<String>> {
        let filter = "label=delta-ci.agent";
        let containers = ["ps", "--all", "--filter", filter, "--format", "{{.Names}}"];
        let networks = ["network", "ls", "--filter", filter, "--format", "{{.Name}}"];
        let mut found = self.run(&containers)?;
        found.push_str(&self.run(&networks)?);
        Ok(found.lines().map(str::to_owned).collect())
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(program("docker", "docker.io")?);
        command
            .args(arguments)
            .env("DOCKER_HOST", self.host())
            .env_remove("DOCKER_CONTEXT")
            .stdin(Stdio::null());
        Ok(command)
    }

    fn make_image(&self) -> Result<()> {
        let archive = self.folder.path().join("image.tar");
        pack_image(self.folder.path(), &archive)?;
        self.import(&archive, IMAGE)
    }

    /// Makes an image of an archive.
    pub fn import(&self, archive: &Path, name: &str) -> Result<()> {
        let shown = archive.display().to_string();
        self.run(&["import", &shown, name]).map(drop)
    }

    fn said(&self) -> String {
        let text = fs::read_to_string(self.folder.path().join("log.err")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.daemon
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        self.wake();
        // Quicker than to let the daemon ask each of them to end.
        if let Ok(ids) = self.run(&["ps", "--quiet"]) {
            for id in ids.lines() {
                let _ = self.run(&["rm", "--force", id]);
            }
        }
        if std::thread::panicking() {
            eprintln!("--- dockerd:\n{}", self.said());
        }
        self.stop();
    }
}

/// The archive that [`IMAGE`] is made of, for whatever reads one.
pub fn pack_image(folder: &Path, archive: &Path) -> Result<()> {
    let busybox = program("busybox", "busybox-static")?;
    let root = folder.join("image");
    for name in ["bin", "tmp", "etc"] {
        fs::create_dir_all(root.join(name))?;
    }
    fs::copy(&busybox, root.join("bin/busybox"))?;
    let list = Command::new(&busybox).arg("--list").output()?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    for applet in list.lines().filter(|line| *line != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
    pack(&root, archive)
}

/// An archive of a folder.
pub fn pack(root: &Path, archive: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.arg("-C").arg(root).arg("-cf").arg(archive).arg(".");
    finished(&["tar"], &command.output()?).map(drop)
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

fn finished(arguments: &[&str], output: &Output) -> Result<String> {
    ensure!(
        output.status.success(),
        "{arguments:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn program(name: &str, package: &str) -> Result<PathBuf> {
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    let elsewhere = || {
        system
            .iter()
            .map(|system| Path::new(system).join(name))
            .find(|text| text.is_file())
    };
    mortal_children::find_on_path(name)
        .or_else(elsewhere)
        .with_context(|| format!("{name} is missing; install the package {package}"))
}
