//! The processes of one cluster: found, signalled, outlasted.
//!
//! PostgreSQL makes the data folder the working folder of each of its processes. That tells a
//! cluster's members apart from any other PostgreSQL on the machine, and also finds the orphans
//! of a killed postmaster. Signals nothing else.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::wait::Pace;

/// SIGSTOP works at once except in a disk wait; this is more than any disk wait of a test.
const PAUSE_DEADLINE: Duration = Duration::from_secs(10);

/// After kill -9 the kernel needs a moment, no more.
const KILLED_DEADLINE: Duration = Duration::from_secs(10);

pub(super) fn find(data: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| is_member(*pid, data))
        .collect()
}

/// To one process; no error when it has gone.
pub(super) fn send(pid: u32, signal: Signal) -> Result<()> {
    let target = Pid::from_raw(pid as i32).context("no process has pid 0")?;
    match kill_process(target, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("sending {signal:?} to {pid}")),
    }
}

pub(super) fn signal_all(data: &Path, signal: Signal) -> Result<()> {
    find(data).into_iter().try_for_each(|pid| send(pid, signal))
}

/// Stops all of them, the postmaster first, so that it makes no new ones meanwhile; returns when
/// every one has stopped.
pub(super) fn pause(data: &Path, postmaster: Option<u32>) -> Result<()> {
    if let Some(pid) = postmaster {
        send(pid, Signal::STOP)?;
    }
    let mut pace = Pace::new(PAUSE_DEADLINE);
    loop {
        let moving: Vec<u32> = find(data)
            .into_iter()
            .filter(|pid| !is_stopped(*pid))
            .collect();
        if moving.is_empty() {
            return Ok(());
        }
        moving.iter().try_for_each(|pid| send(*pid, Signal::STOP))?;
        match pace.next_pause() {
            Some(pause) => std::thread::sleep(pause),
            None => bail!("processes {moving:?} of PostgreSQL do not stop"),
        }
    }
}

/// Waits until no process of the cluster is left, and kills those that do not leave.
pub(super) fn outlast(data: &Path, deadline: Duration) -> Result<()> {
    signal_all(data, Signal::CONT)?;
    if gone_within(data, deadline) {
        return Ok(());
    }
    signal_all(data, Signal::KILL)?;
    if !gone_within(data, KILLED_DEADLINE) {
        bail!("processes {:?} of PostgreSQL survive kill -9", find(data));
    }
    Ok(())
}

fn gone_within(data: &Path, deadline: Duration) -> bool {
    let mut pace = Pace::new(deadline);
    while !find(data).is_empty() {
        match pace.next_pause() {
            Some(pause) => std::thread::sleep(pause),
            None => return false,
        }
    }
    true
}

fn is_member(pid: u32, data: &Path) -> bool {
    let here = fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == data);
    here && fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "postgres\n")
}

fn is_stopped(pid: u32) -> bool {
    // "pid (name) state …"; a process that has gone moves no more either.
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => {
            let state = text
                .rsplit(") ")
                .next()
                .and_then(|rest| rest.chars().next());
            matches!(state, Some('T' | 't' | 'Z' | 'X'))
        }
        Err(_) => true,
    }
}
