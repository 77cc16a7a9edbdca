//! One job between two agents and a network that loses, repeats and reorders.
//!
//! Agents follow the protocol: ask, acknowledge, heartbeat, complete or acknowledge a cancel, and
//! send again what was not answered. They crash and forget. Everything in flight may arrive in any
//! order, twice or never, the sweeper may be late by a unit, and time moves in units. Losses,
//! copies and crashes have no budget: as many as one likes, which is also fewer states than one.

use delta_core::{Lease, LeaseState, Reply, Settings, Span};

use super::explore::Model;
use super::print::{self, Print};
use super::server_state::{Own, Stand};
use super::stage::{self, AGENTS, Held, Outcome, Says, UNIT};
use crate::check::{Tally, Violation};

/// What limits the exploration.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub in_flight: usize,
    /// Leases issued for the job in total.
    pub leases: u8,
    pub max_attempts: u32,
    pub run_timeout: Span,
}

impl Bounds {
    /// The published bound: two attempts, two messages in flight.
    pub fn full() -> Bounds {
        Bounds {
            in_flight: 2,
            leases: 2,
            max_attempts: 2,
            run_timeout: UNIT.times(4),
        }
    }

    pub fn quick() -> Bounds {
        Bounds {
            in_flight: 1,
            ..Bounds::full()
        }
    }

    pub fn storm() -> Bounds {
        Bounds {
            leases: 3,
            ..Bounds::full()
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mail {
    Ask,
    Say(Held, Says),
    Granted(Held),
    /// The acknowledgement was accepted.
    Go(Held),
    /// A heartbeat's answer that carries a cancel.
    Stop(Held),
    /// Accepted to the end: the lease is over.
    Done(Held),
    Stale(Held),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Letter {
    pub agent: u8,
    pub mail: Mail,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    #[default]
    Idle,
    /// Granted; the acknowledgement was not answered yet.
    Taking(Held),
    Working(Held),
    /// The result is fixed and sent until it is answered.
    Ending(Held, Outcome),
    /// A cancel was heard.
    Stopping(Held),
}

#[derive(Clone, Copy, Debug)]
pub enum Action {
    Send(Letter),
    Finish { agent: u8, outcome: Outcome },
    Deliver(Letter),
    Lose(Letter),
    Copy(Letter),
    Crash { agent: u8 },
    Own(Own),
}

#[derive(Clone)]
pub struct State {
    stand: Stand,
    /// Sorted: what is in flight has no order.
    net: Vec<Letter>,
    agents: [Phase; AGENTS as usize],
}

pub struct Network {
    pub bounds: Bounds,
    pub settings: Settings,
}

impl Phase {
    fn held(self) -> Option<Held> {
        match self {
            Phase::Idle => None,
            Phase::Taking(held)
            | Phase::Working(held)
            | Phase::Ending(held, _)
            | Phase::Stopping(held) => Some(held),
        }
    }

    /// What an agent in this phase sends, first or again.
    fn sends(self) -> Mail {
        match self {
            Phase::Idle => Mail::Ask,
            Phase::Taking(held) => Mail::Say(held, Says::Ack),
            Phase::Working(held) => Mail::Say(held, Says::Beat(0)),
            Phase::Ending(held, outcome) => Mail::Say(held, Says::Complete(outcome)),
            Phase::Stopping(held) => Mail::Say(held, Says::CancelAck),
        }
    }

    fn hears(self, mail: Mail) -> Phase {
        match (mail, self) {
            (Mail::Granted(held), Phase::Idle | Phase::Taking(_)) => Phase::Taking(held),
            (Mail::Go(held), Phase::Taking(mine)) if held == mine => Phase::Working(held),
            (Mail::Stop(held), Phase::Working(mine)) if held == mine => Phase::Stopping(held),
            (Mail::Done(held) | Mail::Stale(held), phase) if phase.held() == Some(held) => {
                Phase::Idle
            }
            (_, phase) => phase,
        }
    }
}

fn post(net: &mut Vec<Letter>, letter: Letter) {
    net.push(letter);
    net.sort_unstable();
}

impl Network {
    pub fn new(bounds: Bounds) -> Network {
        // Shorter than in the general model: there the lease outlives the job, here it does not.
        let settings = Settings {
            lease_ttl: UNIT.times(2),
            ..stage::settings()
        };
        Network { bounds, settings }
    }

    /// The server or an agent gets a letter; the server's answer may be worth a letter back.
    fn receive(&self, state: &mut State, to: Letter, tally: &mut Tally) -> Result<(), Violation> {
        let settings = &self.settings;
        let answer = match to.mail {
            Mail::Ask => match state.stand.next_lease() {
                Some(held) if held.number <= self.bounds.leases => {
                    let command = stage::grant(to.agent, held, settings);
                    let granted = state.stand.apply(&command, settings, tally)?;
                    granted.map(|_| Mail::Granted(held))
                }
                _ => None,
            },
            Mail::Say(held, says) => {
                let command = stage::command(to.agent, held, says, settings);
                let answered = state.stand.apply(&command, settings, tally)?;
                answered.and_then(|(reply, _)| match reply {
                    Reply::Acknowledged { .. } => Some(Mail::Go(held)),
                    Reply::Renewed { cancel, .. } => cancel.map(|_| Mail::Stop(held)),
                    Reply::Completed | Reply::CompletedAfterCancel | Reply::CancelAcknowledged => {
                        Some(Mail::Done(held))
                    }
                    Reply::Stale(_) => Some(Mail::Stale(held)),
                    _ => None,
                })
            }
            heard => {
                let agent = &mut state.agents[to.agent as usize];
                *agent = agent.hears(heard);
                None
            }
        };
        if let Some(mail) = answer {
            post(&mut state.net, Letter { mail, ..to });
        }
        Ok(())
    }

    /// I15 as a fact about states: while an answer is on its way, what it says stands.
    fn answers_stand(&self, state: &State) -> Result<(), Violation> {
        for letter in &state.net {
            let (held, wanted) = match letter.mail {
                Mail::Done(held) => (held, false),
                Mail::Go(held) => (held, true),
                _ => continue,
            };
            let key = stage::key(held, &self.settings);
            let attempt = state.stand.world.attempts.get(&key.attempt);
            let lease = attempt
                .and_then(Option::as_ref)
                .and_then(|attempt| attempt.lease.as_ref())
                .filter(|lease| lease.epoch == key.epoch);
            let closed = lease.is_some_and(|lease| {
                matches!(lease.state, LeaseState::Completed | LeaseState::Canceled)
            });
            // A lease that was acknowledged may have ended since, but was acknowledged once.
            let began = lease.is_none_or(|lease| lease.acknowledged_at.is_some());
            let stands = if wanted { began } else { closed };
            if !stands {
                return Err(Violation {
                    invariant: "I15",
                    what: format!("{letter:?} is on its way, but {key:?} says otherwise"),
                });
            }
        }
        Ok(())
    }

    fn print_as(&self, state: &State, swap: bool) -> u128 {
        let mut print = Print::default();
        let index = |agent: u8| if swap { AGENTS - 1 - agent } else { agent };
        let who = |lease: &Lease| u64::from(index(u8::from(&*lease.runner == "b")));
        print::world(&mut print, &state.stand.world, state.stand.now, &who);
        print::memory(&mut print, &state.stand.memory, &state.stand.world);
        let mut net = state.net.clone();
        for letter in &mut net {
            letter.agent = index(letter.agent);
        }
        net.sort_unstable();
        print.tag(&net);
        for agent in 0..AGENTS {
            print.tag(&state.agents[index(agent) as usize]);
        }
        print.finish()
    }
}

impl Model for Network {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        let mut stand = Stand::default();
        let create = stage::create_run(self.bounds.max_attempts, self.bounds.run_timeout);
        stand
            .apply(&create, &self.settings, &mut Tally::default())
            .expect("a run can be created");
        vec![State {
            stand,
            net: Vec::new(),
            agents: Default::default(),
        }]
    }

    fn actions(&self, state: &State, into: &mut Vec<Action>) {
        let bounds = &self.bounds;
        let room = state.net.len() < bounds.in_flight;
        for agent in 0..AGENTS {
            let phase = state.agents[agent as usize];
            let mail = phase.sends();
            // What is sent after the end is refused like what was sent before and arrives then.
            if room && !state.stand.settled() {
                into.push(Action::Send(Letter { agent, mail }));
            }
            if let Phase::Working(_) = phase {
                for outcome in [Outcome::Success, Outcome::Flaky] {
                    into.push(Action::Finish { agent, outcome });
                }
            }
            if phase != Phase::Idle {
                into.push(Action::Crash { agent });
            }
        }
        let mut last = None;
        for &letter in &state.net {
            if last.replace(letter) == Some(letter) {
                continue;
            }
            into.extend([Action::Deliver(letter), Action::Lose(letter)]);
            // An agent that sends again makes the copies of its own letters.
            let answer = !matches!(letter.mail, Mail::Ask | Mail::Say(..));
            if room && answer {
                into.push(Action::Copy(letter));
            }
        }
        for own in [Own::Sweep, Own::SweepRun, Own::CancelRun, Own::Tick] {
            into.push(Action::Own(own));
        }
    }

    fn step(
        &self,
        state: &State,
        action: Action,
        tally: &mut Tally,
    ) -> Result<Option<State>, Violation> {
        let mut next = state.clone();
        match action {
            // The sweeper may be late, but not by more than a unit.
            Action::Own(Own::Tick)
                if state.stand.due_at().is_some_and(|at| at < state.stand.now) =>
            {
                return Ok(None);
            }
            Action::Own(own) => {
                if !next.stand.own(own, &self.settings, tally)? {
                    return Ok(None);
                }
            }
            Action::Send(letter) | Action::Copy(letter) => post(&mut next.net, letter),
            Action::Finish { agent, outcome } => {
                let phase = &mut next.agents[agent as usize];
                if let Some(held) = phase.held() {
                    *phase = Phase::Ending(held, outcome);
                }
            }
            Action::Crash { agent } => next.agents[agent as usize] = Phase::Idle,
            Action::Deliver(letter) | Action::Lose(letter) => {
                let at = next.net.iter().position(|net| *net == letter);
                next.net.remove(at.expect("only what is in flight arrives"));
                if let Action::Deliver(_) = action {
                    self.receive(&mut next, letter, tally)?;
                }
            }
        }
        self.answers_stand(&next)?;
        Ok(Some(next))
    }

    fn print(&self, state: &State) -> u128 {
        self.print_as(state, false).min(self.print_as(state, true))
    }

    fn may_rest(&self, state: &State) -> bool {
        state.stand.reported()
    }
}
