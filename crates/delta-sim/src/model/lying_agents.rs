//! One job and agents that may say anything about any lease they were ever granted, at any time.
//!
//! The most general client: honest, confused and lying agents, late, repeated and reordered
//! messages are all among its behaviours, so no network needs to be modelled. The sweeper comes
//! when it likes, time moves in whole units.

use delta_core::{Lease, Settings};

use super::explore::Model;
use super::print::{self, Print};
use super::server_state::{Own, Stand};
use super::stage::{self, AGENTS, Held, Outcome, Says, UNIT};
use crate::check::{Tally, Violation};

#[derive(Clone, Copy, Debug)]
pub enum Action {
    Ask { agent: u8 },
    Say { agent: u8, held: Held, says: Says },
    Own(Own),
}

#[derive(Clone)]
pub struct State {
    stand: Stand,
    /// Who was granted which lease.
    granted: Vec<(u8, Held)>,
}

pub struct Anyone {
    pub leases: u8,
    pub max_attempts: u32,
    pub settings: Settings,
    pub run_timeout: i64,
}

impl Anyone {
    pub fn new(leases: u8, run_timeout: i64) -> Anyone {
        Anyone {
            leases,
            max_attempts: 2,
            settings: stage::settings(),
            run_timeout,
        }
    }

    fn print_as(&self, state: &State, swap: bool) -> u128 {
        let mut print = Print::default();
        let index = |agent: u8| if swap { AGENTS - 1 - agent } else { agent };
        let who = |lease: &Lease| u64::from(index(u8::from(&*lease.runner == "b")));
        print::world(&mut print, &state.stand.world, state.stand.now, &who);
        print::memory(&mut print, &state.stand.memory, &state.stand.world);
        for (agent, held) in &state.granted {
            print.tag(&(index(*agent), held));
        }
        print.finish()
    }
}

impl Model for Anyone {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        let mut stand = Stand::default();
        let create = stage::create_run(self.max_attempts, UNIT.times(self.run_timeout));
        stand
            .apply(&create, &self.settings, &mut Tally::default())
            .expect("a run can be created");
        let granted = Vec::new();
        vec![State { stand, granted }]
    }

    fn actions(&self, state: &State, into: &mut Vec<Action>) {
        for agent in 0..AGENTS {
            into.push(Action::Ask { agent });
        }
        for &(agent, held) in &state.granted {
            for says in [
                Says::Ack,
                Says::Beat(0),
                Says::Beat(1),
                Says::Beat(2),
                Says::Complete(Outcome::Success),
                Says::Complete(Outcome::Flaky),
                Says::CancelAck,
                Says::Decline,
            ] {
                into.push(Action::Say { agent, held, says });
            }
        }
        into.extend(Own::ALL.map(Action::Own));
    }

    fn step(
        &self,
        state: &State,
        action: Action,
        tally: &mut Tally,
    ) -> Result<Option<State>, Violation> {
        let mut next = state.clone();
        let settings = &self.settings;
        let changed = match action {
            Action::Own(own) => next.stand.own(own, settings, tally)?,
            Action::Say { agent, held, says } => {
                let command = stage::command(agent, held, says, settings);
                let reply = next.stand.apply(&command, settings, tally)?;
                reply.is_some_and(|(_, changed)| changed)
            }
            Action::Ask { agent } => match next.stand.next_lease() {
                Some(held) if held.number <= self.leases => {
                    let command = stage::grant(agent, held, settings);
                    let granted = next.stand.apply(&command, settings, tally)?;
                    if granted.is_some() {
                        next.granted.push((agent, held));
                    }
                    granted.is_some()
                }
                _ => false,
            },
        };
        Ok(changed.then_some(next))
    }

    fn print(&self, state: &State) -> u128 {
        self.print_as(state, false).min(self.print_as(state, true))
    }

    fn may_rest(&self, state: &State) -> bool {
        state.stand.reported()
    }
}
