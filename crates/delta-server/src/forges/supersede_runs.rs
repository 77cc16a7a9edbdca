//! Runs that another takes the place of, when one is planned: who there is beside it, and the end
//! of those that are older. Which they are `supersede` says.

use delta_core::{Cause, Command, Run, RunId};
use delta_store::read::{RunFilter, RunKind};
use delta_wire::api::{Trigger, TriggerEvent};

use super::planning::Planning;
use super::supersede::{self, Other};
use super::{Registered, base};

/// Runs of one ref that are looked at: more than anybody pushes while one waits.
const OF_A_REF: usize = 200;

/// Who ended a run that was the older one of its ref, and why. A concurrency group ends runs with
/// the same cause, of other refs, too: this tells them apart.
const BY_ITS_REF: &str = "server: a newer run of its ref took its place";

/// Whether a newer run ends the older ones whatever the pipeline file says.
pub fn ends_older(trigger: &Trigger, registered: &Registered) -> bool {
    trigger.number.is_some() && registered.supersede
}

/// Whether a run of the same ref took its place, and not one of its concurrency group.
pub fn is_ended_by_its_ref(run: &Run) -> bool {
    let cancel = run.cancel.as_ref();
    cancel.is_some_and(|it| it.cause == Cause::Superseded && &*it.by == BY_ITS_REF)
}

impl Planning {
    /// Other runs of the same request or ref.
    pub(super) async fn others(&self, run: &Run, trigger: &Trigger) -> Result<Vec<Other>, String> {
        // What a person asked for is nobody's newer.
        let by_hand = trigger.event == TriggerEvent::Manual || run.header.rerun_of.is_some();
        if by_hand {
            return Ok(Vec::new());
        }
        let filter = RunFilter {
            repository: run.header.repository.clone(),
            git_ref: run.header.git_ref.clone(),
            kind: RunKind::Plain,
            ..RunFilter::default()
        };
        let found = self.read(move |reader| reader.runs(&filter, OF_A_REF));
        let other = |run: &Run| Other {
            id: run.id,
            commit: run.header.commit.as_deref().unwrap_or_default().to_owned(),
            live: !run.state.has_ended(),
            rerun: run.header.rerun_of.is_some(),
        };
        let found = found.await?;
        let alike = found.iter().filter(|it| base::is_like(it, trigger));
        Ok(alike.map(other).collect())
    }

    /// Ends what is older; true when this run is old itself.
    pub(super) async fn supersede(
        &self,
        run: &Run,
        head: &str,
        others: &[Other],
    ) -> Result<bool, String> {
        let commit = run.header.commit.as_deref().unwrap_or_default();
        let outcome = supersede::judge(run.id, commit, head, others);
        let own = outcome.is_old.then_some(run.id);
        for id in outcome.ends.into_iter().chain(own) {
            self.end(id).await?;
        }
        Ok(outcome.is_old)
    }

    /// Ends a run that another has taken the place of.
    pub(super) async fn end(&self, run: RunId) -> Result<(), String> {
        let command = Command::CancelRun {
            run,
            cause: Cause::Superseded,
            by: BY_ITS_REF.into(),
        };
        self.command(command).await
    }
}
