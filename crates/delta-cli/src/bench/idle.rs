//! One job at a time on a server that has nothing else to do: how long from enqueue to grant.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::child::ServerUnderTest;
use super::jobs::{Slot, run_of, submit};
use super::numbers::Samples;

/// How long a request of the slot may take to be parked at the server before we give up.
const PARK_PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at the number of parked requests.
const PARK_PAUSE: Duration = Duration::from_millis(2);

/// Measures `count` jobs, one after another, until the time is over.
pub async fn measure(server: &ServerUnderTest, count: usize, limit: Duration) -> Result<Samples> {
    let mut user = server.user().await?;
    let mut watch = server.user().await?;
    let mut slot = Slot::new(server.runner().await?, 0);
    let body = run_of(1, None);
    let started = Instant::now();
    let mut waits = Vec::with_capacity(count);
    while waits.len() < count && started.elapsed() < limit {
        let waiting = tokio::spawn(async move {
            let granted = loop {
                if let Some(grant) = slot.lease().await? {
                    break grant;
                }
            };
            anyhow::Ok((slot, granted))
        });
        until_parked(&mut watch).await?;
        let sent = Instant::now();
        submit(&mut user, &body).await?;
        let (mut free, grant) = waiting.await.context("the slot ended")??;
        waits.push(grant.at.saturating_duration_since(sent));
        free.acknowledge(&grant).await?;
        free.complete(&grant).await?;
        slot = free;
    }
    Ok(Samples::new(waits))
}

/// The slot's request must be at the server, or its own way there would be measured, too.
async fn until_parked(watch: &mut super::wire::Connection) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < PARK_PATIENCE {
        let body = watch.get("/metrics").await?.expect(200, "metrics")?;
        if super::meter::Counters::parse(&String::from_utf8_lossy(&body)).parked >= 1.0 {
            return Ok(());
        }
        tokio::time::sleep(PARK_PAUSE).await;
    }
    bail!("the server never said that it holds a lease request")
}
