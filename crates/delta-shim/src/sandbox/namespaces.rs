//! What a confined job has for itself of what a machine's processes share: memory in `/dev/shm`,
//! and the kernel's own segments, semaphores and queues. All of it ends with the job. And of the
//! file system it has the part that it may use: the kernel's rules close files, but not the sockets
//! of services, of which one that makes containers is worth a whole machine.
//!
//! It is the work of namespaces. Root may make them; whoever is not makes one for users first, in
//! which nobody but the agent's user exists. That must be done while a process has one thread, so
//! at the very start of a shim; the rest is done by the thread that starts the job's processes, and
//! the shim itself stays where it is.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::fs::OFlags;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_remount,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

use super::file_rules::{self, SHARED_MEMORY};
use super::slot_user;
use crate::program::ShimProgram;

/// In the place of a state folder: a shim that is only to try whether all this can be had.
const TRY: &str = "try-namespaces";

/// As every system has it: anybody makes files, nobody removes another's. Of the machine's memory
/// a tenth, not the usual half: every job has one.
const SHARED: &std::ffi::CStr = c"mode=1777,size=10%";
/// Nothing is found in it, by nobody.
const CLOSED: &std::ffi::CStr = c"mode=000,size=4k";
/// Only the way to what is mounted below.
const PASSED: &std::ffi::CStr = c"mode=755,size=1m";

/// A hold on a place, whatever is there.
const PATH_ONLY: i32 = OFlags::PATH.bits() as i32;

/// Whether whoever is not root can have all this here, once that was tried.
static TRIED: OnceLock<bool> = OnceLock::new();

/// Whether a job can have these things for itself.
pub(super) fn is_possible() -> bool {
    if geteuid().is_root() {
        static ROOT: OnceLock<bool> = OnceLock::new();
        *ROOT.get_or_init(|| {
            file_rules::elsewhere(|| enter(&file_rules::readable(), &[]).is_ok()).unwrap_or(false)
        })
    } else {
        TRIED.get().copied().unwrap_or(false)
    }
}

/// Tries it with a process of its own, which takes a moment. For an agent, before it says what it
/// enforces.
pub fn find_out(program: &ShimProgram) {
    if geteuid().is_root() {
        return;
    }
    TRIED.get_or_init(|| {
        let tried = Command::new(&program.program)
            .args(&program.arguments)
            .arg(TRY)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        tried.is_ok_and(|status| status.success())
    });
}

/// Whether this shim is one that only tries; then, whether it can be.
pub(crate) fn trial(folder: &Path) -> Option<bool> {
    (folder == Path::new(TRY)).then(|| {
        own_users()
            .and_then(|()| enter(&file_rules::readable(), &[]))
            .is_ok()
    })
}

/// A namespace for users in which nobody but this process's own exists. Its powers in there end
/// with the first program that is started.
pub(crate) fn own_users() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Puts the calling thread, and whatever is started from it, apart from the rest of the machine: of
/// its file system there are these parts and `/dev`; what is closed has no path, sockets neither.
pub(super) fn enter(parts: &[PathBuf], closed: &[PathBuf]) -> io::Result<()> {
    if !slot_user::is_mapped(geteuid().as_raw()) {
        return Err(io::Error::other("it has no user in its namespace"));
    }
    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWIPC)?;
    // What is unmounted outside goes here, too; what is mounted here stays here.
    let to_here = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", to_here)?;
    if Path::new(SHARED_MEMORY).is_dir() {
        mount("delta-ci", SHARED_MEMORY, "tmpfs", PLAIN, SHARED)?;
    }
    for folder in closed.iter().filter(|it| it.is_dir()) {
        let flags = PLAIN | MountFlags::RDONLY | MountFlags::NOEXEC;
        mount("delta-ci", folder.as_path(), "tmpfs", flags, CLOSED)?;
    }
    leave_only(&outermost(parts))
}

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// As they are called without links, those inside of others left out.
fn outermost(parts: &[PathBuf]) -> Vec<PathBuf> {
    let real = parts.iter().filter_map(|part| part.canonicalize().ok());
    let mut real: Vec<PathBuf> = real.chain([PathBuf::from("/dev")]).collect();
    // What is above comes before what is in it.
    real.sort();
    real.dedup_by(|inner, outer| inner.starts_with(outer));
    real
}

/// Takes every folder of the root away that is no part, or has none in it.
fn leave_only(parts: &[PathBuf]) -> io::Result<()> {
    for entry in fs::read_dir("/")?.flatten() {
        let folder = entry.path();
        let whole = parts.contains(&folder);
        if !whole && entry.file_type().is_ok_and(|it| it.is_dir()) {
            let inside: Vec<&PathBuf> = parts.iter().filter(|it| it.starts_with(&folder)).collect();
            replace(&folder, &inside)?;
        }
    }
    Ok(())
}

/// Puts an empty folder in the place of this one, and what is wanted of it back where it was.
fn replace(folder: &Path, inside: &[&PathBuf]) -> io::Result<()> {
    let hold = |path: &&PathBuf| {
        File::options()
            .read(true)
            .custom_flags(PATH_ONLY)
            .open(path)
    };
    let held: Vec<File> = inside.iter().map(hold).collect::<io::Result<_>>()?;
    mount("delta-ci", folder, "tmpfs", PLAIN, PASSED)?;
    for (path, held) in inside.iter().zip(held) {
        if held.metadata()?.is_dir() {
            fs::create_dir_all(path)?
        } else {
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            File::create(path)?;
        }
        let source = format!("/proc/self/fd/{}", held.as_raw_fd());
        mount_bind_recursive(source, path.as_path())?;
    }
    Ok(mount_remount(folder, PLAIN | MountFlags::RDONLY, c"")?)
}

#[expect(
    deprecated,
    reason = "unsafe only for descriptors, which stay shared: the flags here name none"
)]
fn unshare(what: UnshareFlags) -> io::Result<()> {
    Ok(rustix::thread::unshare(what)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_of_another_part_comes_with_it() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().canonicalize().expect("a path");
        for name in ["a/inner", "ab", "b"] {
            fs::create_dir_all(root.join(name)).expect("a folder");
        }
        std::os::unix::fs::symlink(root.join("b"), root.join("link")).expect("a link");
        let parts = ["a/inner", "link", "ab", "a", "nowhere"].map(|name| root.join(name));
        let mut wanted = vec![root.join("a"), root.join("ab"), root.join("b")];
        wanted.push("/dev".into());
        wanted.sort();
        assert_eq!(outermost(&parts), wanted);
    }
}
