//! The Debian packages the tests need, and how they come onto a machine.
//!
//! Owns the table of programs and packages. Installing never starts a system service and never
//! makes a database cluster: tests start their own parts in temporary folders. Whatever is put
//! down for that is taken away again; a file that was there before is left alone. Without root it
//! changes nothing and says what to type.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::succeed;

/// Program, and the package that has it. Add a row to make a part available to tests. What is no
/// program is named by its whole path, in which a folder's name may end with a star.
const NEEDS: &[(&str, &str)] = &[
    ("initdb", "postgresql"),
    ("pg_ctl", "postgresql"),
    ("setpriv", "util-linux"),
    ("faketime", "faketime"),
    ("python3", "python3"),
    ("curl", "curl"),
    ("pytest-3", "python3-pytest"),
    // Tests fetch runners of other people's with it, into the target folder.
    (
        "/usr/lib/python3/dist-packages/pip/__init__.py",
        "python3-pip",
    ),
    ("/usr/lib/python3.*/ensurepip/__init__.py", "python3-venv"),
    ("redis-server", "redis-server"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("make", "make"),
    ("git", "git"),
    ("git-lfs", "git-lfs"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("/usr/sbin/sshd", "openssh-server"),
    ("/usr/sbin/dockerd", "docker.io"),
    ("busybox", "busybox-static"),
    ("podman", "podman"),
    ("catatonit", "catatonit"),
    ("openssl", "openssl"),
    (
        "/usr/lib/python3/dist-packages/grpc/__init__.py",
        "python3-grpcio",
    ),
    ("protoc", "protobuf-compiler"),
    ("grpc_python_plugin", "protobuf-compiler-grpc"),
    (
        "/usr/include/google/protobuf/timestamp.proto",
        "libprotobuf-dev",
    ),
];

/// Debian keeps the server programs of PostgreSQL out of the search path.
const POSTGRES: &str = "/usr/lib/postgresql";

/// Tells the packages' scripts not to start services (exit code 101 means "forbidden by policy").
const POLICY: &str = "/usr/sbin/policy-rc.d";
const POLICY_TEXT: &str = "#!/bin/sh\n# Placed by `cargo xtask test --install`.\nexit 101\n";

/// Read by the PostgreSQL packages through the include line of createcluster.conf.
const NO_CLUSTER: &str = "/etc/postgresql-common/createcluster.d/delta-ci-tests.conf";
const NO_CLUSTER_TEXT: &str =
    "# Placed by `cargo xtask test --install`.\ncreate_main_cluster = false\n";

/// Fails when a program is missing, naming the command that brings it.
pub fn require() -> Result<()> {
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    bail!(
        "the tests need Debian packages that are missing: {0}\n  \
         as root: cargo xtask test --install\n  \
         or:      apt-get install --no-install-recommends {0}",
        packages.join(" ")
    )
}

/// Installs what is missing; without root it only says what that is.
pub fn install() -> Result<()> {
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    if !is_root() {
        return require();
    }
    println!("==> install {}", packages.join(" "));
    let _policy = Placed::file(POLICY, POLICY_TEXT, 0o755)?;
    let _no_cluster = if packages.contains(&"postgresql") {
        Some(Placed::file(NO_CLUSTER, NO_CLUSTER_TEXT, 0o644)?)
    } else {
        None
    };
    succeed(apt_get(&["update", "-qq"]))?;
    let mut command = apt_get(&["install", "-y", "-qq", "--no-install-recommends"]);
    command.args(&packages);
    succeed(command)?;
    require()
}

fn apt_get(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // RUNLEVEL=1 keeps services down even where somebody else's policy file would allow them.
    command
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("RUNLEVEL", "1");
    command
}

fn missing() -> Vec<&'static str> {
    let folders = folders();
    let mut packages: Vec<&str> = NEEDS
        .iter()
        .filter(|(program, _)| !is_there(program, &folders))
        .map(|(_, package)| *package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Whether a program is in one of these folders, or a file where its path says.
fn is_there(program: &str, folders: &[PathBuf]) -> bool {
    let Some((before, after)) = program.split_once("*/") else {
        return folders.iter().any(|folder| folder.join(program).is_file());
    };
    let (above, start) = before.rsplit_once('/').unwrap_or(("", before));
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    let named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(start);
    entries
        .filter(named)
        .any(|entry| entry.path().join(after).is_file())
}

fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Ok(versions) = fs::read_dir(POSTGRES) {
        folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    folders
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// A file put down for as long as this value lives, unless one was there already.
struct Placed {
    ours: Option<PathBuf>,
}

impl Placed {
    fn file(path: impl AsRef<Path>, text: &str, mode: u32) -> Result<Self> {
        let path = path.as_ref();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        let opened = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                // Left by an earlier try that was killed: it is ours to take away.
                let ours = fs::read_to_string(path).is_ok_and(|found| found == text);
                return Ok(Placed {
                    ours: ours.then(|| path.to_owned()),
                });
            }
            Err(error) => return Err(error).with_context(|| format!("place {}", path.display())),
        };
        let placed = Placed {
            ours: Some(path.to_owned()),
        };
        file.write_all(text.as_bytes())
            .with_context(|| format!("write {}", path.display()))?;
        Ok(placed)
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some(path) = &self.ours
            && let Err(error) = fs::remove_file(path)
        {
            eprintln!("xtask: could not remove {}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_file_may_lie_below_a_folder_of_some_version() {
        let folder = scratch("star");
        fs::create_dir_all(folder.join("python3.99/ensurepip")).unwrap();
        fs::write(folder.join("python3.99/ensurepip/x.py"), "").unwrap();
        let path = |name: &str| format!("{}/{name}*/ensurepip/x.py", folder.display());
        assert!(is_there(&path("python3."), &[]));
        assert!(!is_there(&path("python4."), &[]));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_placed_file_is_taken_away_again() {
        let path = scratch("ours");
        let placed = Placed::file(&path, "a\n", 0o644).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\n");
        drop(placed);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_was_there_before_is_left_alone() {
        let path = scratch("theirs");
        fs::write(&path, "theirs\n").unwrap();
        drop(Placed::file(&path, "a\n", 0o644).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs\n");
        fs::remove_file(&path).unwrap();
    }
}
