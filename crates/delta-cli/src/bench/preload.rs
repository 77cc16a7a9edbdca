//! A store that is not empty: finished jobs, and queued ones that nobody can take.

use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::ProgressBar;

use super::child::ServerUnderTest;
use super::jobs::{run_of, submit};
use super::lifecycle::{Load, drive};

/// Jobs of one run while preloading: the fastest way in.
const JOBS_PER_RUN: usize = 100;

/// What no slot of the bench has.
const NOBODY_HAS: &str = "bench-nobody";

/// Takes this many jobs through their whole life.
pub async fn finished(
    server: &ServerUnderTest,
    jobs: u64,
    limit: Duration,
    bar: ProgressBar,
) -> Result<()> {
    let load = Load {
        slots: 64,
        agents: None,
        jobs,
        jobs_per_run: JOBS_PER_RUN,
        submitters: 4,
        time_limit: limit,
    };
    let reached = drive(server, load, bar).await?;
    if reached.completed < jobs {
        bail!(
            "only {} of {jobs} finished jobs could be preloaded in {limit:?}; raise --time-limit",
            reached.completed
        );
    }
    Ok(())
}

/// Puts this many jobs into the queue, for good.
pub async fn queued(server: &ServerUnderTest, jobs: u64, bar: ProgressBar) -> Result<()> {
    let mut connection = server.user().await?;
    let mut left = usize::try_from(jobs)?;
    while left > 0 {
        let now = left.min(JOBS_PER_RUN);
        submit(&mut connection, &run_of(now, Some(NOBODY_HAS))).await?;
        left -= now;
        bar.inc(now as u64);
    }
    bar.finish_and_clear();
    Ok(())
}
