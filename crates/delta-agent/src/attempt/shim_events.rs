//! What happens in a shim, told to the observer and to the heartbeats.

use std::sync::Arc;

use delta_shim::step::Step;

use crate::agent::SlotContext;
use crate::attempt::run::Visible;
use crate::attempt::{Happened, Watcher};
use crate::log::progress::{Lines, Progress};
use crate::work::Identity;

/// Tells the observer what happens, and keeps what heartbeats tell.
pub(crate) struct ShimEvents {
    pub context: Arc<SlotContext>,
    pub visible: Arc<Visible>,
    pub identity: Identity,
    pub steps: Vec<Step>,
    pub lines: Lines,
}

impl Watcher for ShimEvents {
    fn happened(&mut self, what: Happened<'_>) {
        let (job, observer) = (&self.identity, &self.context.observer);
        let tell = |line: &[u8]| observer.progress(Progress::Output { job, line });
        match what {
            Happened::Output(bytes) => self.lines.push(bytes, tell),
            Happened::StepEnded(_) => self.lines.finish(tell),
            Happened::StepBegan { index } => {
                let label = self.steps.get(index).map(Step::label);
                let label = label.unwrap_or_default();
                let text = label.as_str();
                let mut step = self.visible.step.lock();
                *step.as_deref_mut().unwrap_or(&mut None) = Some((index, label.clone()));
                let count = self.steps.len();
                observer.progress(Progress::Step {
                    job,
                    index,
                    count,
                    text,
                });
            }
        }
    }
}

/// A last line without its newline is a line too.
impl Drop for ShimEvents {
    fn drop(&mut self) {
        let (job, observer) = (&self.identity, &self.context.observer);
        self.lines
            .finish(|line| observer.progress(Progress::Output { job, line }));
    }
}
