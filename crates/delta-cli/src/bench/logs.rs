//! One job that prints as fast as the server takes it, until the whole log can be read back by
//! range; beside it the same bytes written to a plain file.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use delta_wire::agent::MAX_CHUNK_BYTES;
use delta_wire::agent::proto::AssignWork;
use delta_wire::agent::proto::server_message::Message as Say;

use super::child::ServerUnderTest;
use super::jobs::{run_of, submit};
use super::session::{As, Session};

/// Bytes on their way: what an agent's window grows to on a quick line.
const WINDOW: u64 = 4 * 1024 * 1024;

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub bytes: u64,
    /// Until the server had received all of it.
    pub received: Duration,
    /// Until it said that all of it is on disk.
    pub stored: Duration,
    /// Until the last byte was read back.
    pub read: Duration,
    /// Until as many bytes were in a file, synced.
    pub file: Duration,
}

pub async fn measure(server: &ServerUnderTest, bytes: u64) -> Result<Found> {
    let who = As {
        name: "bench".into(),
        slots: 1,
        ..As::default()
    };
    let mut session = Session::open(server, who).await?;
    submit(&mut server.user().await?, &run_of(1, None)).await?;
    let work = loop {
        if let Say::AssignWork(work) = session.next().await? {
            break work;
        }
    };
    session.say(vec![session.accept(&work)]).await?;
    while !matches!(session.next().await?, Say::WorkAck(ack) if ack.accepted) {}
    let began = Instant::now();
    send(&mut session, &work, bytes).await?;
    let received = began.elapsed();
    let done = session.complete(&work.run_id, &work.lease);
    session.say(vec![done]).await?;
    while !matches!(session.next().await?, Say::CompleteAck(ack) if ack.accepted) {}
    let stored = began.elapsed();
    let path = format!("/api/v1/jobs/{}/log", work.job_id);
    let mut user = server.user().await?;
    let read = user.get(&path).await?.expect(200, "reading the log")?;
    if read.len() as u64 != bytes {
        bail!("{} bytes were read back instead of {bytes}", read.len());
    }
    Ok(Found {
        bytes,
        received,
        stored,
        read: began.elapsed(),
        file: plain_file(bytes)?,
    })
}

async fn send(session: &mut Session, work: &AssignWork, bytes: u64) -> Result<()> {
    let chunk = Bytes::from(vec![b'x'; MAX_CHUNK_BYTES]);
    let (mut sent, mut received) = (0, 0);
    while received < bytes {
        while sent < bytes && sent - received < WINDOW {
            let length = usize::try_from(bytes - sent).unwrap_or(usize::MAX);
            let data = chunk.slice(..length.min(chunk.len()));
            let length = data.len() as u64;
            session.say(vec![session.log(work, sent, data)]).await?;
            sent += length;
        }
        match session.next().await? {
            Say::LogAck(ack) if ack.resend => bail!("the server asked for bytes again"),
            Say::LogAck(ack) => received = ack.received,
            Say::StaleLease(stale) => bail!("the lease is over: {}", stale.reason),
            _ => {}
        }
    }
    Ok(())
}

fn plain_file(bytes: u64) -> Result<Duration> {
    let mut file = tempfile::tempfile().context("a file to compare with")?;
    let chunk = vec![b'x'; MAX_CHUNK_BYTES];
    let began = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        file.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    file.sync_data()?;
    Ok(began.elapsed())
}
