//! How fast one lease's log is taken in and read back, beside a plain file of the same bytes in the
//! same run: only the ratio means something on another machine.
//!
//! `cargo run --example log_rate -p delta-server -- [MEGABYTES [CHUNK_KILOBYTES [FOLDER]]]`

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use delta_core::{LeaseKey, RunId};
use delta_server::objects::{MAX_LOG_BYTES, Objects};

const MEGA: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let megabytes: u64 = args.next().map_or(Ok(200), |it| it.parse())?;
    let kilobytes: usize = args.next().map_or(Ok(256), |it| it.parse())?;
    let folder = match args.next() {
        Some(parent) => tempfile::tempdir_in(parent)?,
        None => tempfile::tempdir()?,
    };
    let length = (megabytes * MEGA).min(MAX_LOG_BYTES);
    let chunk: Bytes = (0..kilobytes * 1024).map(|n| (n % 251) as u8).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    for round in 1..=3 {
        let before = resident();
        let plain = plain(
            &folder.path().join(format!("plain-{round}")),
            length,
            &chunk,
        )?;
        let root = folder.path().join(format!("objects-{round}"));
        let objects = Arc::new(Objects::open(root)?);
        let lease = RunId(round).job(1).attempt(1).lease(1);
        objects.make_log(lease)?;
        let taken = runtime.block_on(take(&objects, lease, length, &chunk))?;
        let read = read(&objects, lease, length)?;
        let rate = |took: Duration| length as f64 / MEGA as f64 / took.as_secs_f64();
        println!(
            "round {round}: plain file {:.0} MB/s; log received {:.0} MB/s, stored {:.0} MB/s \
             ({:.2} of plain); read by range {:.0} MB/s; resident +{} kB",
            rate(plain),
            rate(taken.received),
            rate(taken.stored),
            plain.as_secs_f64() / taken.stored.as_secs_f64(),
            rate(read),
            resident().saturating_sub(before),
        );
    }
    Ok(())
}

fn pieces(length: u64, chunk: &Bytes) -> impl Iterator<Item = (u64, Bytes)> {
    let size = chunk.len() as u64;
    (0..length.div_ceil(size)).map(move |n| {
        let offset = n * size;
        let left = usize::try_from(length - offset).unwrap_or(usize::MAX);
        (offset, chunk.slice(..chunk.len().min(left)))
    })
}

fn plain(path: &Path, length: u64, chunk: &Bytes) -> std::io::Result<Duration> {
    let started = Instant::now();
    let mut file = File::create(path)?;
    for (_, piece) in pieces(length, chunk) {
        file.write_all(&piece)?;
    }
    file.sync_data()?;
    let took = started.elapsed();
    std::fs::remove_file(path)?;
    Ok(took)
}

struct Taken {
    received: Duration,
    stored: Duration,
}

async fn take(
    objects: &Arc<Objects>,
    lease: LeaseKey,
    length: u64,
    chunk: &Bytes,
) -> Result<Taken, Box<dyn std::error::Error>> {
    let started = Instant::now();
    let mut watch = objects.watch_log(lease);
    for (offset, piece) in pieces(length, chunk) {
        objects.append_log(lease, offset, piece).await?;
    }
    let received = started.elapsed();
    while watch.cursors().stored < length {
        watch.changed().await;
    }
    Ok(Taken {
        received,
        stored: started.elapsed(),
    })
}

fn read(objects: &Objects, lease: LeaseKey, length: u64) -> std::io::Result<Duration> {
    let started = Instant::now();
    let mut log = objects.read_log(lease, 0);
    let mut buffer = vec![0; 256 * 1024];
    while log.at() < length {
        log.fill(&mut buffer)?;
    }
    Ok(started.elapsed())
}

/// Resident kilobytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
