//! What the server does by itself. Every duty has one silhouette, [`every::Duty`]: what it needs,
//! `run_once` (one pass, returns counts), and nothing that decides: the core does. One loop,
//! [`every`](every::every), makes its passes and measures them.
//!
//! Duties go through the writer like everybody else, in lane 2, with stamps of their own (A38).
//! Two more are where their subject is: [`planning`](crate::forges::planning) gives runs their
//! jobs, [`reporter`](crate::forges::reporter) tells forges about them.

pub mod every;
pub mod meters;
mod mirrors;
mod presence;
mod queues;
mod retention;
mod sweep;
mod tidy;
mod unjudged_calls;

use std::sync::Arc;

use delta_core::RunId;
use delta_wire::places::is_never_a_server;
use tokio::task::JoinHandle;

#[cfg(test)]
pub use sweep::Swept;
pub use sweep::{Sweep, clamp_leases};

use crate::Config;
use crate::app::App;
use crate::forges::planning::Planning;
use crate::forges::reporter::{REQUEST, Reporter};
use crate::objects::Objects;
use every::{Duty, every};
use mirrors::TrimMirrors;
use presence::WritePresence;
use queues::ReadQueues;
use retention::Retention;
use tidy::Tidy;
use unjudged_calls::UnjudgedCalls;

/// Starts all of them; each ends when it is time to stop.
pub fn start(config: &Config, app: &App) -> Vec<JoinHandle<()>> {
    if !config.duties {
        return Vec::new();
    }
    let mut started = vec![
        begin(app, Sweep::new(app.writer.clone(), config.settings.sweep)),
        begin(app, UnjudgedCalls::new(app.clone())),
        begin(
            app,
            WritePresence::new(app.agents.clone(), app.sides.tables.clone()),
        ),
        begin(app, Tidy::new(app.clone())),
        begin(
            app,
            Retention {
                writer: app.writer.clone(),
                keep: config.retention,
                objects: app.objects.clone(),
            },
        ),
    ];
    match delta_forge::Client::new(REQUEST, is_never_a_server) {
        Ok(client) => {
            let reporter = Arc::new(Reporter::new(app.clone(), client));
            started.push(begin(app, reporter));
        }
        Err(error) => tracing::error!(%error, "no forge is told anything"),
    }
    if let Some(program) = config.planner.clone() {
        let mirrors = config.data.join("mirrors");
        let planning = Arc::new(Planning::new(app.clone(), program, mirrors));
        started.push(begin(app, TrimMirrors(planning.fetching.clone())));
        started.push(begin(app, planning));
    }
    if app.writer.shared().several_writers {
        started.push(begin(app, ReadQueues(app.clone())));
    }
    started
}

fn begin<D: Duty + 'static>(app: &App, duty: D) -> JoinHandle<()> {
    let metrics = app.writer.shared().metrics.clone();
    tokio::spawn(every(duty, metrics, app.stop.clone()))
}

/// Deletes the files of runs that are gone; how many. What stays is found again by the duty `tidy`.
fn delete_runs(objects: &Objects, runs: &[RunId]) -> usize {
    let deleted = |run: &&RunId| match objects.delete_run(**run) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, %run, "the objects of a deleted run stay behind");
            false
        }
    };
    runs.iter().filter(deleted).count()
}
