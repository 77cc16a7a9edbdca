//! Three jobs and the end of their run, without a network: needs, required and optional jobs, fail
//! fast, retries, cancels of the run and of each job, every timeout, planning, reporting.
//!
//! Each job has a runner of its own that does what it is told; time jumps to the next deadline when
//! the sweeper has seen to everything that is due, in any order.

use delta_core::attempt::Report;
use delta_core::command::{LeaseProof, NewJob, NewRun, Status};
use delta_core::lease::epoch;
use delta_core::{
    AttemptState, Cause, Command, Digest, JobId, Lease, LeaseState, Policy, RunState, Settings,
    Span, Text,
};

use super::explore::Model;
use super::print::{self, Print};
use super::server_state::Stand;
use super::stage::{self, RUN, UNIT};
use crate::check::{Tally, Violation};

const JOBS: u32 = 3;

/// One shape of a run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bits: 2 needs 1, 3 needs 1, 3 needs 2.
    pub needs: u8,
    /// Bit n-1: job n is required.
    pub required: u8,
    pub fail_fast: bool,
    pub needs_report: bool,
}

impl Shape {
    /// Every graph of three jobs, every choice of required ones, with and without fail fast.
    pub fn all() -> Vec<Shape> {
        let mut all = Vec::new();
        for needs in 0..8 {
            for required in 0..8 {
                for fail_fast in [false, true] {
                    all.push(Shape {
                        needs,
                        required,
                        fail_fast,
                        needs_report: (needs + required) % 2 == 1,
                    });
                }
            }
        }
        all
    }

    fn needs_of(self, n: u32) -> Vec<u32> {
        let edges = [(2, 1), (3, 1), (3, 2)];
        (0..3)
            .filter(|bit| self.needs & (1 << bit) != 0)
            .map(|bit| edges[bit as usize])
            .filter(|(who, _)| *who == n)
            .map(|(_, whom)| whom)
            .collect()
    }

    fn jobs(self) -> Vec<NewJob> {
        let job = |n: u32| NewJob {
            name: format!("job {n}").into(),
            policy: Policy {
                required: self.required & (1 << (n - 1)) != 0,
                needs: self.needs_of(n),
                // One job with a retry is enough to meet every other's end.
                ..stage::policy(if n == 1 { 2 } else { 1 })
            },
            spec: [n as u8; 32],
            kept: None,
        };
        (1..=JOBS).map(job).collect()
    }
}

#[derive(Clone, Copy, Debug)]
pub enum End {
    Success,
    Flaky,
}

#[derive(Clone, Copy, Debug)]
pub enum Action {
    Plan,
    FailPlan,
    PlanNothing,
    Grant(u32),
    Ack(u32),
    Complete(u32, End),
    CancelAck(u32),
    CancelJob(u32),
    CancelRun,
    Sweep(u32),
    SweepRun,
    Report,
    Jump,
}

pub struct Finalise {
    pub shape: Shape,
    pub settings: Settings,
}

fn job(n: u32) -> JobId {
    RUN.job(n)
}

fn runner(n: u32) -> Text {
    ["-", "a", "b", "c"][n as usize].into()
}

fn token(n: u32, number: u32) -> Digest {
    let mut token = [n as u8; 32];
    token[1] = number as u8;
    token
}

impl Finalise {
    pub fn new(shape: Shape) -> Finalise {
        let settings = Settings {
            max_losses: 1,
            max_dispatches: 1,
            ..stage::settings()
        };
        Finalise { shape, settings }
    }

    fn proof(&self, state: &Stand, n: u32) -> Option<LeaseProof> {
        let attempt = state.world.jobs.get(&job(n))?.as_ref()?.current();
        let lease = state.world.attempts.get(&attempt)?.as_ref()?.live_lease()?;
        Some(LeaseProof {
            key: attempt.lease(lease.epoch),
            token: lease.token,
            principal: runner(n),
            runner: runner(n),
            speaker: delta_core::rights::Speaker::anybody(),
        })
    }

    fn command(&self, state: &Stand, action: Action) -> Option<Command> {
        let by = || Text::from("ann");
        let cause = Cause::CanceledByUser;
        let current = |n| Some(state.world.jobs.get(&job(n))?.as_ref()?.current());
        Some(match action {
            Action::Plan => Command::Plan {
                run: RUN,
                jobs: self.shape.jobs(),
                settings: None,
            },
            Action::PlanNothing => Command::Plan {
                run: RUN,
                jobs: Vec::new(),
                settings: None,
            },
            Action::FailPlan => Command::FailPlan {
                run: RUN,
                cause: Cause::PlanError,
            },
            Action::Grant(n) => {
                let attempt = current(n)?;
                let number = state.world.attempts.get(&attempt)?.as_ref()?.lease_number + 1;
                Command::Grant {
                    attempt,
                    principal: runner(n),
                    runner: runner(n),
                    token: token(n, number),
                    epoch: epoch(self.settings.incarnation, number),
                }
            }
            Action::Ack(n) => Command::AckLease {
                proof: self.proof(state, n)?,
                job: job(n),
            },
            Action::Complete(n, end) => complete(self.proof(state, n)?, end),
            Action::CancelAck(n) => Command::CancelAck {
                proof: self.proof(state, n)?,
                digest: [9; 32],
                report: Box::default(),
            },
            Action::CancelJob(n) => Command::CancelJob {
                job: job(n),
                cause,
                by: by(),
            },
            Action::CancelRun => Command::CancelRun {
                run: RUN,
                cause,
                by: by(),
            },
            Action::Sweep(n) => Command::AttemptDue {
                attempt: current(n)?,
            },
            Action::SweepRun => Command::RunDue { run: RUN },
            Action::Report => Command::Report { run: RUN },
            Action::Jump => return None,
        })
    }

    /// To the next moment at which something is due, once nothing is.
    fn jump(&self, state: &mut Stand) -> bool {
        match state.due_at() {
            Some(at) if at > state.now => {
                state.now = at;
                true
            }
            _ => false,
        }
    }
}

fn complete(proof: LeaseProof, end: End) -> Command {
    let (status, exit_code, cause) = match end {
        End::Success => (Status::Succeeded, 0, None),
        End::Flaky => (Status::Failed, 1, Some(Cause::Flaky)),
    };
    let report = Report {
        exit_code: Some(exit_code),
        ..Report::default()
    };
    Command::Complete {
        proof,
        digest: [end as u8; 32],
        status,
        cause,
        report: Box::new(report),
    }
}

impl Model for Finalise {
    type State = Stand;
    type Action = Action;

    fn initial(&self) -> Vec<Stand> {
        let mut header = stage::header(UNIT.times(4));
        header.fail_fast = self.shape.fail_fast;
        header.needs_report = self.shape.needs_report;
        header.wait_timeout = Span::secs(3);
        let create = Command::CreateRun(Box::new(NewRun {
            id: RUN,
            header,
            jobs: None,
        }));
        let mut stand = Stand::default();
        stand
            .apply(&create, &self.settings, &mut Tally::default())
            .expect("a run can be created");
        vec![stand]
    }

    fn actions(&self, state: &Stand, into: &mut Vec<Action>) {
        let run = state.run().map(|run| run.state);
        into.extend([Action::Jump, Action::SweepRun, Action::CancelRun]);
        if run == Some(RunState::Planning) {
            into.extend([Action::Plan, Action::FailPlan, Action::PlanNothing]);
        }
        if self.shape.needs_report {
            into.push(Action::Report);
        }
        for n in 1..=JOBS {
            let Some(Some(found)) = state.world.jobs.get(&job(n)) else {
                continue;
            };
            let Some(Some(attempt)) = state.world.attempts.get(&found.current()) else {
                continue;
            };
            into.push(Action::Sweep(n));
            // Two of the three: a third cancel by hand meets nothing that the second did not.
            if n < JOBS {
                into.push(Action::CancelJob(n));
            }
            match attempt.live_lease().map(|lease| lease.state) {
                None if attempt.state == AttemptState::Queued => into.push(Action::Grant(n)),
                None => {}
                Some(LeaseState::Granted) => into.push(Action::Ack(n)),
                Some(_) => {
                    for end in [End::Success, End::Flaky] {
                        into.push(Action::Complete(n, end));
                    }
                    into.push(Action::CancelAck(n));
                }
            }
        }
    }

    fn step(
        &self,
        state: &Stand,
        action: Action,
        tally: &mut Tally,
    ) -> Result<Option<Stand>, Violation> {
        let mut next = state.clone();
        if let Action::Jump = action {
            return Ok(self.jump(&mut next).then_some(next));
        }
        let Some(command) = self.command(state, action) else {
            return Ok(None);
        };
        let applied = next.apply(&command, &self.settings, tally)?;
        // Only the first job rests between grant and acknowledgement.
        if let Action::Grant(n @ 2..) = action
            && let Some(ack) = self.command(&next, Action::Ack(n))
        {
            next.apply(&ack, &self.settings, tally)?;
        }
        Ok(applied.is_some_and(|(_, changed)| changed).then_some(next))
    }

    fn print(&self, state: &Stand) -> u128 {
        let mut print = Print::default();
        let who = |_: &Lease| 0;
        print::world(&mut print, &state.world, state.now, &who);
        print.finish()
    }

    fn may_rest(&self, state: &Stand) -> bool {
        state.reported()
    }
}
