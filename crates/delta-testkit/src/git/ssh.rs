//! git over SSH: a real sshd that lets one key in, as the user of the tests.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::mortal_children::find_on_path;
use crate::port::free_port;
use crate::process::{Process, Spawn};
use crate::wait::eventually;

/// It has a key to read and a socket to bind.
const START: Duration = Duration::from_secs(20);

/// A key pair.
#[derive(Debug)]
pub struct Key {
    /// As a file holds it.
    pub private: String,
    /// One line.
    pub public: String,
}

impl Key {
    pub fn make() -> Result<Key> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("key");
        make_key(&file)?;
        Ok(Key {
            private: fs::read_to_string(&file)?,
            public: fs::read_to_string(file.with_extension("pub"))?,
        })
    }
}

/// A server that is gone when dropped.
#[derive(Debug)]
pub struct Sshd {
    port: u16,
    host_key: String,
    process: Process,
    _folder: TempDir,
}

impl Sshd {
    /// Lets in whoever has the private half of this key.
    pub fn start(allowed: &Key) -> Result<Sshd> {
        Sshd::start_with(allowed, None)
    }

    /// Lets in whoever has the key, and has the programs of this folder, too.
    pub fn start_with(allowed: &Key, programs: Option<&Path>) -> Result<Sshd> {
        let program = find_on_path("sshd")
            .or_else(|| Some(PathBuf::from("/usr/sbin/sshd")).filter(|it| it.is_file()))
            .context("sshd is not there; install the package openssh-server")?;
        if rustix::process::geteuid().is_root() {
            // Where it locks up what it does not trust; Debian makes it with the service.
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o755).create("/run/sshd")?;
        }
        let folder = tempfile::tempdir()?;
        let (host, users) = (folder.path().join("host"), folder.path().join("users"));
        make_key(&host)?;
        fs::write(&users, &allowed.public)?;
        let programs = programs.map(|program| format!("{}:", program.display()));
        let path = format!("PATH={}/usr/bin:/bin", programs.unwrap_or_default());
        let port = free_port()?;
        let process = Spawn::new(program)
            .args(["-D", "-e", "-f", "/dev/null", "-p", &port.to_string()])
            .args(["-o", "ListenAddress=127.0.0.1"])
            .args(["-o", &format!("HostKey={}", host.display())])
            .args(["-o", &format!("AuthorizedKeysFile={}", users.display())])
            .args(["-o", "PasswordAuthentication=no", "-o", "StrictModes=no"])
            .args(["-o", "PidFile=none", "-o", "UsePAM=no"])
            .args(["-o", &format!("SetEnv={path}")])
            .spawn()?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        eventually(START, "sshd listens", || TcpStream::connect(addr).map(drop));
        Ok(Sshd {
            port,
            host_key: fs::read_to_string(host.with_extension("pub"))?,
            process,
            _folder: folder,
        })
    }

    /// The address of the repository at this absolute path.
    pub fn url(&self, path: &Path) -> Result<String> {
        let user = Command::new("id").arg("-un").output()?.stdout;
        let user = String::from_utf8(user)?;
        let (user, port) = (user.trim(), self.port);
        Ok(format!("ssh://{user}@127.0.0.1:{port}{}", path.display()))
    }

    /// The line by which a client knows it.
    pub fn known_hosts(&self) -> String {
        format!("[127.0.0.1]:{} {}", self.port, self.host_key)
    }

    /// What it told of those who came.
    pub fn said(&self) -> String {
        self.process.stderr()
    }
}

fn make_key(file: &Path) -> Result<()> {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"])
        .arg(file)
        .stdin(Stdio::null())
        .status()
        .context("ssh-keygen is not on the PATH; install the package openssh-client")?;
    ensure!(made.success(), "ssh-keygen: {made}");
    Ok(())
}
