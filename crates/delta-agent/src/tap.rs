//! What happens in a shim, told to the observer and to the heartbeats.

use std::sync::Arc;

use crate::agent::SlotContext;
use crate::attempt::{Happened, Watcher};
use crate::executor::{Identity, Step};
use crate::progress::{Lines, Progress};
use crate::work::Visible;

/// Tells the observer what happens, and keeps what heartbeats tell.
pub(crate) struct Tap {
    pub context: Arc<SlotContext>,
    pub visible: Arc<Visible>,
    pub identity: Identity,
    pub steps: Vec<Step>,
    pub lines: Lines,
}

impl Watcher for Tap {
    fn happened(&mut self, what: Happened<'_>) {
        let (job, observer) = (&self.identity, &self.context.observer);
        let tell = |line: &[u8]| observer.progress(Progress::Output { job, line });
        match what {
            Happened::Output(bytes) => self.lines.push(bytes, tell),
            Happened::StepEnded(_) => self.lines.finish(tell),
            Happened::StepBegan { index } => {
                let (label, text) = match self.steps.get(index) {
                    Some(step) => (step.label(), step.script.as_str()),
                    None => (String::new(), ""),
                };
                let mut step = self.visible.step.lock();
                *step.as_deref_mut().unwrap_or(&mut None) = Some((index, label));
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
impl Drop for Tap {
    fn drop(&mut self) {
        let (job, observer) = (&self.identity, &self.context.observer);
        self.lines
            .finish(|line| observer.progress(Progress::Output { job, line }));
    }
}
