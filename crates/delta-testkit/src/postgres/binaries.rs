//! Where PostgreSQL's programs are, and as whom they run.
//!
//! Debian keeps `initdb` and `postgres` out of the PATH, in a folder per version. Nothing is
//! installed from here: an error names the package and the command that installs it.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::mortal_children::{Inherited, dying_with_us, find_on_path};

/// Debian's folder of PostgreSQL versions.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The user that Debian's package makes for the server.
const SERVER_USER: &str = "postgres";

#[derive(Debug)]
pub(super) struct Binaries {
    folder: PathBuf,
    /// Uid and gid to run as, when we are root.
    server_user: Option<(u32, u32)>,
}

impl Binaries {
    pub(super) fn find() -> Result<Self> {
        let Some(folder) = on_path().or_else(newest_version) else {
            bail!(missing(
                "initdb and postgres are neither on the PATH nor below",
                VERSIONS
            ));
        };
        let server_user = if rustix::process::geteuid().is_root() {
            let Some(ids) = ids_of(SERVER_USER)? else {
                bail!(missing(
                    "PostgreSQL refuses to run as root and there is no user",
                    "postgres"
                ))
            };
            Some(ids)
        } else {
            None
        };
        Ok(Self {
            folder,
            server_user,
        })
    }

    /// A program of PostgreSQL, as the right user, that gets `signal` when this process ends.
    pub(super) fn command(&self, program: &str, signal: &str) -> Result<Command> {
        let program = self.folder.join(program);
        match self.server_user {
            Some((uid, gid)) => {
                let (uid, gid) = (uid.to_string(), gid.to_string());
                let switch = ["--reuid", &uid, "--regid", &gid, "--clear-groups"];
                dying_with_us(&program, Inherited::Everything, signal, &switch)
            }
            None => dying_with_us(&program, Inherited::Everything, signal, &[]),
        }
    }

    pub(super) fn give_to_server_user(&self, folder: &Path) -> Result<()> {
        let Some((uid, gid)) = self.server_user else {
            return Ok(());
        };
        chown(folder, Some(uid), Some(gid))
            .with_context(|| format!("giving {} to {SERVER_USER}", folder.display()))
    }
}

fn missing(what: &str, name: &str) -> String {
    format!(
        "{what} {name}: tests need a real PostgreSQL; install the Debian package `postgresql`, \
         or let `cargo xtask test --install` do it"
    )
}

fn on_path() -> Option<PathBuf> {
    // The link's target: beside the real file lie the others that belong to it.
    let server = find_on_path("postgres")?.canonicalize().ok()?;
    complete(server.parent()?.to_owned())
}

fn newest_version() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(VERSIONS)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, complete(entry.path().join("bin"))?))
        })
        .collect();
    versions.sort();
    Some(versions.pop()?.1)
}

fn complete(folder: PathBuf) -> Option<PathBuf> {
    let has = |name: &str| folder.join(name).is_file();
    (has("initdb") && has("postgres")).then_some(folder)
}

fn ids_of(user: &str) -> Result<Option<(u32, u32)>> {
    let text = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    Ok(text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let named = fields.next() == Some(user);
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        named.then_some((uid, gid))
    }))
}
