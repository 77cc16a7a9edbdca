//! Follows one run over the API: woken by its events, it reads the run and tells the screen which
//! jobs have come to an end.

use std::collections::HashSet;
use std::time::Duration;

use delta_wire::api::{EventView, RunView};

use super::screen::Screen;
use crate::client::Client;
use crate::cmd::events;
use crate::failure::Failure;
use crate::state_words;

/// Events only wake us; when one is lost, this is how long it takes to notice.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Returns the run as it is after its end.
pub async fn until_over(client: &Client, run: &str, screen: &Screen) -> Result<RunView, Failure> {
    let mut told: HashSet<String> = HashSet::new();
    let mut seen = 0;
    loop {
        let view: RunView = client.get(&format!("/api/v1/runs/{run}")).await?;
        for job in view
            .jobs
            .iter()
            .filter(|job| state_words::is_over(job.state))
        {
            if told.insert(job.job_id.clone()) {
                screen.resolved(job);
            }
        }
        if view.summary.outcome.is_some() {
            return Ok(view);
        }
        seen = view.version.max(seen);
        wait_for_change(client, run, seen).await?;
    }
}

/// Returns when the run has an event after `seen`, or after a moment anyhow.
async fn wait_for_change(client: &Client, run: &str, seen: u64) -> Result<(), Failure> {
    let mut events = events::open(client, run, seen).await?;
    let next = async {
        while let Ok(Some(event)) = events.next().await {
            let version = serde_json::from_str::<EventView>(&event.data).map(|event| event.version);
            if version.is_ok_and(|version| version > seen) {
                return;
            }
        }
        // The stream ended: do not spin on a server that is going away.
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    let _ = tokio::time::timeout(LOOK_AGAIN, next).await;
    Ok(())
}
