//! Loopback ports that stay ours while a peer is down.
//!
//! A port from `bind(0)` comes from the range the kernel also takes for outgoing connections: once
//! a killed server has freed it, any client on the machine may be sitting on it when the server
//! comes back. So the ports here lie below that range, and a file lock held until this process
//! ends keeps other test processes from handing out the same one.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

use crate::rng::Rng;

/// Above the ports of usual services, which a developer may have running.
const LOWEST: u64 = 15_000;

/// Used where the kernel does not tell its own range: Linux starts at 32768 by default.
const USUAL_EPHEMERAL_START: u64 = 32_768;

/// With some 17,000 ports to draw from, a hundred misses mean that something else is wrong.
const TRIES: u32 = 100;

static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A free port on 127.0.0.1, reserved among test processes until this process ends.
pub fn free_port() -> Result<u16> {
    free_ports(1)
}

/// The first of so many free ports that follow each other, reserved like one.
pub fn free_ports(count: u16) -> Result<u16> {
    let folder = lock_folder()?;
    let end = ephemeral_start().max(LOWEST + 1_000);
    let mut held = HELD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // No replay is wanted here: two processes with the same seed must not draw the same ports.
    let seed = u64::from(std::process::id()) << 32 | held.len() as u64;
    let mut rng = Rng::new(seed);
    for _ in 0..TRIES {
        let port = rng.between(LOWEST..end - u64::from(count)) as u16;
        let mut locks = Vec::new();
        for port in port..port + count {
            let lock = File::create(folder.join(port.to_string()))?;
            if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
                locks.push(lock);
            }
        }
        if locks.len() == usize::from(count) {
            held.extend(locks);
            return Ok(port);
        }
    }
    bail!("no {count} free ports in {LOWEST}..{end} after {TRIES} tries")
}

fn lock_folder() -> Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("delta-ci-test-ports-{uid}"));
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder)
}

fn ephemeral_start() -> u64 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(USUAL_EPHEMERAL_START)
}
