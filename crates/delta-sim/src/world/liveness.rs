//! The second half of a story: the faults end, one fit agent is left, and everything must come to
//! rest within the time that was promised (L1 … L5). In half of the stories every other agent stays
//! broken for good: dead, or deaf and still taking work.

use std::collections::BTreeMap;

use delta_core::deadlines::run_must_end_by;
use delta_core::{Millis, RunId, RunState, Span};
use delta_store::Store;

use super::agent::Kind;
use super::faults::Faults;
use super::{Event, Sim};
use crate::check::Violation;

fn late(rule: &'static str, what: String) -> Violation {
    Violation {
        invariant: rule,
        what,
    }
}

impl Sim {
    pub(super) fn liveness(&mut self) -> Result<(), Violation> {
        self.say(|| "the faults end".to_string());
        self.faults = Faults::none(self.desks.len());
        for server in 0..self.desks.len() {
            self.start(server)?;
        }
        let broken = self.rng.coin();
        for (n, agent) in self.agents.iter_mut().enumerate() {
            agent.cut_off = false;
            if n > 0 {
                agent.kind = if broken { Kind::Deaf } else { Kind::Honest };
                if broken && n > 1 {
                    agent.crash();
                }
            }
        }
        if !self.agents[0].up {
            self.after(0, 0, Event::AgentStart { agent: 0 });
        }
        // People whose wish was not heard yet may still be granted it.
        let begun = self.now;
        let patience = begun + Span::secs(15);
        let mut promised = BTreeMap::new();
        while self.now < patience || !self.quiet() {
            self.promise(&mut promised);
            self.next()?;
            // What fell due while nobody swept gets a few sweeps.
            let settled = self.now > begun + self.settings.sweep.times(4);
            if settled && self.events.is_multiple_of(16) {
                self.kept(&promised)?;
            }
        }
        self.drained()?;
        // Subscribers may be a poll behind.
        let last = self.now + Span::secs(60);
        while self.now < last && !self.queue.is_empty() {
            self.next()?;
        }
        Ok(())
    }

    /// Until when each run must have settled, with what a sweep and a report may add: fixed when
    /// the faults ended, or when the run was made.
    fn promise(&self, promised: &mut BTreeMap<RunId, Millis>) {
        let runs = &self.judge.shadow.runs;
        if runs.len() == promised.len() {
            return;
        }
        let slack = self.settings.sweep.times(4).plus(Span::secs(8));
        let settle = self.settings.force_after().plus(slack);
        let now = self.clock(0);
        for run in runs.values().flatten() {
            let by = run_must_end_by(run, &self.settings).unwrap_or(now);
            // Overdue since nobody swept: it ends at once, or a grant comes first and it runs.
            let soonest = match run.started_at {
                None => now + run.header.run_timeout.plus(settle),
                Some(_) => now + settle,
            };
            promised.entry(run.id).or_insert((by + slack).max(soonest));
        }
    }

    fn quiet(&self) -> bool {
        let mut runs = self.judge.memory.runs.values();
        runs.all(|state| *state == RunState::Reported)
    }

    /// L1, L2, L4: what should have ended by now has.
    fn kept(&self, promised: &BTreeMap<RunId, Millis>) -> Result<(), Violation> {
        let now = self.clock(0);
        for (run, by) in promised {
            let state = self.run_state(*run);
            if now > *by && state != Some(RunState::Reported) {
                return Err(late("L2", format!("{run} is {state:?} after {by:?}")));
            }
        }
        let overdue = now - self.settings.sweep.times(4);
        for attempt in self.judge.shadow.attempts.values().flatten() {
            let cancel = attempt.cancel_deadline().unwrap_or(Millis::FAR);
            if !attempt.state.is_final() && cancel < overdue && self.desks.len() == 1 {
                let what = format!("{} waits past its cancel deadline", attempt.id);
                return Err(late("L4", what));
            }
        }
        Ok(())
    }

    /// L1, L3, L5: no attempt is left, nothing is queued, leased or due.
    fn drained(&mut self) -> Result<(), Violation> {
        let open = self
            .judge
            .shadow
            .attempts
            .values()
            .flatten()
            .find(|attempt| !attempt.state.is_final());
        if let Some(attempt) = open {
            let what = format!("{} is still {:?}", attempt.id, attempt.state);
            return Err(late("L1", what));
        }
        let due = self.store.due(Millis::FAR, 10).unwrap_or_default();
        let leased = self.store.leased().unwrap_or_default();
        if due.is_empty() && leased.is_empty() {
            Ok(())
        } else {
            Err(late("L5", format!("left over: {due:?} {leased:?}")))
        }
    }
}
