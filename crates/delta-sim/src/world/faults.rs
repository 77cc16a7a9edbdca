//! What goes wrong in a story: drawn once per seed, so that some stories are calm and some are not.

use delta_store::memory::Fault;

use super::{Desk, Event, Sim};
use crate::rng::Rng;

/// Chances in a thousand, and spans in milliseconds.
#[derive(Clone, Debug)]
pub struct Faults {
    pub servers: usize,
    pub lose: u64,
    pub copy: u64,
    /// Longest delay of a message.
    pub delay: i64,
    pub commit: u64,
    /// A batch is lost with its server.
    pub crash_in_batch: u64,
    pub server_crashes: i64,
    pub agent_crashes: i64,
    pub cut_offs: i64,
    /// The wall clock moves by up to an hour while a server is down.
    pub clock_jumps: bool,
    /// People cancel and run again.
    pub people: bool,
}

impl Faults {
    pub fn draw(rng: &mut Rng) -> Faults {
        let calm = rng.per_mille(100);
        if calm {
            return Faults {
                people: true,
                ..Faults::none(1)
            };
        }
        let servers = if rng.per_mille(250) { 2 } else { 1 };
        Faults {
            servers,
            lose: rng.below(200),
            copy: rng.below(150),
            delay: [20, 200, 2_000, 8_000][rng.below(4) as usize],
            commit: rng.below(80),
            crash_in_batch: rng.below(15),
            server_crashes: rng.between(0, 4),
            agent_crashes: rng.between(0, 6),
            cut_offs: rng.between(0, 4),
            // Two servers share a clock: one that is hours away would stop writing as soon as the
            // other has written by the new time (A23).
            clock_jumps: servers == 1 && rng.per_mille(300),
            people: true,
        }
    }

    /// The second half of a story: nothing fails any more.
    pub fn none(servers: usize) -> Faults {
        Faults {
            servers,
            lose: 0,
            copy: 0,
            delay: 20,
            commit: 0,
            crash_in_batch: 0,
            server_crashes: 0,
            agent_crashes: 0,
            cut_offs: 0,
            clock_jumps: false,
            people: false,
        }
    }

    /// What happens to the next commit.
    pub fn commit_fault(&self, rng: &mut Rng) -> Option<Fault> {
        if !rng.per_mille(self.commit) {
            return None;
        }
        let all = [
            Fault::Conflict,
            Fault::UnknownApplied,
            Fault::UnknownNotApplied,
            Fault::Unavailable,
        ];
        rng.pick(&all).copied()
    }
}

impl Desk {
    pub(super) fn new(rng: &mut Rng, faults: &Faults) -> Desk {
        // Replicas agree to within a fraction of a second.
        let skew = if faults.servers > 1 { 300 } else { 0 };
        Desk {
            up: false,
            offset: rng.between(-skew, skew),
            inbox: Vec::new(),
            life: 0,
        }
    }
}

impl Sim {
    pub(super) fn plan_faults(&mut self) {
        let faults = self.faults.clone();
        let length = super::SAFETY.0;
        for _ in 0..faults.server_crashes {
            let server = self.rng.below(faults.servers as u64) as usize;
            self.after(1_000, length, Event::Crash { server });
        }
        for _ in 0..faults.agent_crashes {
            let agent = self.rng.below(self.agents.len() as u64) as usize;
            self.after(1_000, length, Event::AgentCrash { agent });
        }
        for _ in 0..faults.cut_offs {
            let agent = self.rng.below(self.agents.len() as u64) as usize;
            let (from, span) = (self.rng.between(1, length), self.rng.between(500, 15_000));
            self.after(from, from, Event::CutOff { agent, cut: true });
            let (agent, cut) = (agent, false);
            self.after(from + span, from + span, Event::CutOff { agent, cut });
        }
    }
}
