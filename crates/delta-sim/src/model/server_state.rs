//! The server's half of a model state: complete rows, what the checkers remember, the time.

use std::sync::Arc;

use delta_core::deadlines::attempt_due_at;
use delta_core::{AttemptId, Cause, Command, Millis, Reply, Run, RunState, Settings, Text, World};

use super::stage::{self, Held, RUN, UNIT};
use crate::check::{Memory, Tally, Violation};

#[derive(Clone, Default)]
pub struct Stand {
    pub world: Arc<World>,
    pub memory: Arc<Memory>,
    pub now: Millis,
}

/// What happens without any agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    Sweep,
    SweepRun,
    CancelRun,
    CancelJob,
    Tick,
}

impl Own {
    pub const ALL: [Own; 5] = [
        Own::Sweep,
        Own::SweepRun,
        Own::CancelRun,
        Own::CancelJob,
        Own::Tick,
    ];
}

impl Stand {
    /// Decides and judges; the reply, and whether anything changed. `None`: refused.
    pub fn apply(
        &mut self,
        command: &Command,
        settings: &Settings,
        tally: &mut Tally,
    ) -> Result<Option<(Reply, bool)>, Violation> {
        let (world, memory) = (&mut self.world, &mut self.memory);
        let decided = super::decide_and_judge(world, memory, tally, command, self.now, settings)?;
        Ok(decided.map(|decision| {
            let changed = decision.record.is_some() || !decision.edits.is_empty();
            (decision.reply, changed)
        }))
    }

    pub fn run(&self) -> Option<&Run> {
        self.world.runs.get(&RUN)?.as_deref()
    }

    pub fn settled(&self) -> bool {
        self.run()
            .is_some_and(|run| run.state.has_ended() && run.live_jobs == 0)
    }

    pub fn reported(&self) -> bool {
        self.run()
            .is_some_and(|run| run.state == RunState::Reported)
    }

    /// The earliest moment at which a sweeper has something to do.
    pub fn due_at(&self) -> Option<Millis> {
        let attempts = self.world.attempts.values().flatten();
        let run = self.run().and_then(Run::due_at);
        attempts
            .filter_map(|row| attempt_due_at(row))
            .chain(run)
            .min()
    }

    pub fn current(&self) -> Option<AttemptId> {
        Some(self.world.jobs.get(&stage::job())?.as_ref()?.current())
    }

    /// The lease a grant would make now.
    pub fn next_lease(&self) -> Option<Held> {
        let current = self.current()?;
        let attempt = self.world.attempts.get(&current)?.as_ref()?;
        Some(Held {
            index: current.index as u8,
            number: attempt.lease_number as u8 + 1,
        })
    }

    /// False when nothing changed.
    pub fn own(
        &mut self,
        own: Own,
        settings: &Settings,
        tally: &mut Tally,
    ) -> Result<bool, Violation> {
        let (by, cause) = (Text::from("ann"), Cause::CanceledByUser);
        let command = match own {
            Own::Tick if self.settled() => return Ok(false),
            Own::Tick => {
                self.now = self.now + UNIT;
                return Ok(true);
            }
            Own::Sweep => match self.current() {
                Some(attempt) => Command::AttemptDue { attempt },
                None => return Ok(false),
            },
            Own::SweepRun => Command::RunDue { run: RUN },
            Own::CancelRun => Command::CancelRun {
                run: RUN,
                cause,
                by,
            },
            Own::CancelJob => Command::CancelJob {
                job: stage::job(),
                cause,
                by,
            },
        };
        let applied = self.apply(&command, settings, tally)?;
        Ok(applied.is_some_and(|(_, changed)| changed))
    }
}
