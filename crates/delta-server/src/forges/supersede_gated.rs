//! Runs that wait for somebody's approval, when a newer head of their request waits, too: the older
//! ones end at once (A43), and nobody approves what is not there any more.
//!
//! Which is the newest the forge's git server says, as for those that are planned: deliveries come
//! in any order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use delta_core::Run;
use delta_wire::api::Trigger;
use delta_wire::planning::FetchAnswer;
use tokio_util::sync::CancellationToken;

use super::planning::Planning;
use super::{supersede, supersede_runs};

/// How long nothing is asked about a request again that was asked about.
const PAUSE: Duration = Duration::from_secs(30);

impl Planning {
    /// Begins to sort out requests of which several runs wait.
    pub(super) fn sort_out(self: &Arc<Self>, gated: Vec<Run>, stop: &CancellationToken) {
        let mut requests: BTreeMap<_, Vec<Run>> = BTreeMap::new();
        let trigger = |run: &Run| Trigger::from_text(run.header.trigger.as_deref()?);
        for run in gated {
            if !trigger(&run).is_some_and(|it| it.gated) {
                continue;
            }
            let request = (run.header.repository.clone(), run.header.git_ref.clone());
            requests.entry(request).or_default().push(run);
        }
        for runs in requests.into_values().filter(|runs| runs.len() > 1) {
            let Some(newest) = runs.iter().map(|run| run.id).max() else {
                continue;
            };
            // One that comes later is asked about anew.
            if !self.sorting().insert(newest) {
                continue;
            }
            let (this, stop) = (self.clone(), stop.clone());
            tokio::spawn(async move {
                let sorted = async {
                    if let Err(why) = this.end_older(&runs).await {
                        tracing::info!(why, "which run of a request is the newest is not known");
                        tokio::time::sleep(PAUSE).await;
                    }
                };
                tokio::select! {
                    () = sorted => {}
                    () = stop.cancelled() => {}
                }
                this.sorting().remove(&newest);
            });
        }
    }

    async fn end_older(&self, runs: &[Run]) -> Result<(), String> {
        let Some(first) = runs.first() else {
            return Ok(());
        };
        let trigger = first.header.trigger.as_deref().and_then(Trigger::from_text);
        let (Some(trigger), Some(git_ref)) = (trigger, &first.header.git_ref) else {
            return Ok(());
        };
        let opened = self.opened(&trigger).await?;
        let (registered, credential) = opened.ok_or("the repository is not registered any more")?;
        if !supersede_runs::ends_older(&trigger, &registered) {
            return Err("older runs go on here".into());
        }
        // First who there is, then the head: see `supersede`.
        let others = self.others(first, &trigger).await?;
        let looked = self.fetching.look(&registered, credential, git_ref);
        let head = match looked.await {
            FetchAnswer::Fetched { commit, .. } => commit,
            FetchAnswer::Failed(why) => return Err(why),
        };
        let mut ended = 0;
        for run in runs {
            let commit = run.header.commit.as_deref().unwrap_or_default();
            if supersede::judge(run.id, commit, &head, &others).is_old {
                ended += 1;
                self.end(run.id).await?;
            }
        }
        match ended {
            0 => Err("none of them is older".into()),
            _ => Ok(()),
        }
    }
}
