//! Which agent has a session with this server, and what it last said (EP-6, EP-49).
//!
//! Owns presence and the rule of one session per agent: the newest wins, and two programs that
//! fight over one identity are told apart from one that restarts (A26).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use delta_core::why::{SeenAgent, SeenOffer};
use delta_core::{Millis, Text};
use delta_store::agents::AgentSeen;

use super::agent_record;
use super::capabilities::About;
use super::orders::{SessionOrder, SessionOrders};
use super::runners::RunnerPool;
use crate::keyed_limit::{KeyedLimit, KeyedPermit};

/// An agent that was not heard of for this long is offline: three heartbeats (EP-49).
pub const OFFLINE_AFTER: Duration = Duration::from_secs(90);
/// A superseded program that registers again this often within this time is a second agent with
/// the same identity, not a restart.
const CLASHES: usize = 3;
const CLASH_WINDOW: Duration = Duration::from_secs(5 * 60);
/// Superseded programs remembered per agent: two that fight need two.
const MAX_SUPERSEDED: usize = 8;
/// Agents remembered after their session ended, so that their clashes are seen; beyond it those
/// without a session are forgotten.
const MAX_REMEMBERED: usize = 50_000;

/// Sessions that one credential may have at a time, registered or about to be: a whole fleet may
/// share one token, and a flood with one token leaves most connections to others.
const MAX_SESSIONS: usize = 16_384;

/// What an agent says it is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentActivity {
    Idle,
    Busy,
    Draining,
}

/// An agent as this server sees it.
#[derive(Clone, Debug)]
pub struct PresentAgent {
    pub status: AgentActivity,
    pub about: About,
    pub session: u64,
    pub since: Millis,
    pub seen_at: Millis,
    /// Live leases it holds.
    pub leases: u32,
    /// How many of them are in the slots of each offer, in the order of [`About::offers`].
    pub busy: Vec<u32>,
    /// Why it turned work away, since which it has taken none.
    pub turns_away: Option<String>,
    /// How its runner pools are, as it last said.
    pub runners: Vec<RunnerPool>,
    pub quarantined: bool,
    /// It is to take no work.
    pub draining: bool,
    /// The last drain it has finished, and when it said so.
    pub drained: Option<(String, Millis)>,
}

impl PresentAgent {
    fn seen(&self) -> SeenAgent {
        let offers = self.about.offers().into_iter().enumerate();
        let offers = offers.map(|(n, (slots, capabilities))| SeenOffer {
            capabilities,
            busy: self.all_taken(n, slots),
        });
        let down = self.runners.iter().filter(|pool| pool.up == 0);
        let down = down.filter_map(|pool| {
            let why = match pool.last_error.as_str() {
                // All its slots are taken, and the next call waits for those.
                "" if self.is_busy(&pool.name) => return None,
                "" => "it is starting",
                why => why,
            };
            Some((pool.name.as_str().into(), why.into()))
        });
        SeenAgent {
            name: self.about.name.as_str().into(),
            offers: offers.collect(),
            down: down.collect(),
            turns_away: self.turns_away.as_deref().map(Text::from),
        }
    }

    fn all_taken(&self, offer: usize, slots: u32) -> bool {
        self.busy.get(offer).is_some_and(|busy| *busy >= slots)
    }

    /// Whether all slots of this runner pool hold a lease.
    fn is_busy(&self, runner: &str) -> bool {
        let mut groups = self.about.groups.iter().enumerate();
        let found = groups.find(|(_, group)| group.runner == runner);
        found.is_some_and(|(n, group)| self.all_taken(n, group.slots))
    }
}

pub struct Agents {
    known: Mutex<HashMap<Text, KnownAgent>>,
    /// What is to be written about agents, the latest word of each.
    unwritten: Mutex<HashMap<Text, AgentSeen>>,
    /// Sessions per credential.
    places: KeyedLimit<Text>,
}

impl Default for Agents {
    fn default() -> Agents {
        Agents {
            known: Mutex::default(),
            unwritten: Mutex::default(),
            places: KeyedLimit::per_key(MAX_SESSIONS),
        }
    }
}

/// A place for a session, free again when it is dropped.
pub type SessionPlace = KeyedPermit<Text>;

/// Leaves when it is dropped: also when a registration breaks off halfway.
pub struct SessionEntry {
    agents: Arc<Agents>,
    agent: Text,
    pub epoch: u64,
}

impl SessionEntry {
    pub fn of(agents: &Arc<Agents>, agent: &Text, epoch: u64) -> SessionEntry {
        SessionEntry {
            agents: agents.clone(),
            agent: agent.clone(),
            epoch,
        }
    }
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        self.agents.leave(&self.agent, self.epoch);
    }
}

#[derive(Default)]
struct KnownAgent {
    current: Option<CurrentSession>,
    superseded: VecDeque<(String, Instant)>,
    clashes: VecDeque<Instant>,
    newest: u64,
}

struct CurrentSession {
    instance: String,
    orders: SessionOrders,
    present: PresentAgent,
    heard: Instant,
}

/// Why an agent may not register now.
#[derive(Debug, PartialEq, Eq)]
pub struct Quarantined;

/// A session's entry.
pub struct EnteredSession {
    pub epoch: u64,
    pub orders: SessionOrders,
    pub quarantined: bool,
}

impl Agents {
    /// Enters a session. An earlier one of the same agent is told to end.
    pub fn enter(
        &self,
        agent: &Text,
        instance: &str,
        about: About,
        newest: u64,
        now: Millis,
    ) -> Result<EnteredSession, Quarantined> {
        let mut known = self.lock();
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, agent| agent.current.is_some());
        }
        let agent = known.entry(agent.clone()).or_default();
        agent.note_clash(instance);
        let quarantined = agent.is_quarantined();
        let other = agent
            .current
            .as_ref()
            .is_some_and(|it| it.instance != instance);
        if quarantined && other {
            return Err(Quarantined);
        }
        let epoch = newest.max(agent.newest).max(now.0.unsigned_abs()) + 1;
        agent.newest = epoch;
        let orders = SessionOrders::default();
        let present = PresentAgent {
            status: AgentActivity::Idle,
            about,
            session: epoch,
            since: now,
            seen_at: now,
            leases: 0,
            busy: Vec::new(),
            turns_away: None,
            runners: Vec::new(),
            quarantined,
            draining: false,
            drained: None,
        };
        let current = CurrentSession {
            instance: instance.to_owned(),
            orders: orders.clone(),
            present,
            heard: Instant::now(),
        };
        if let Some(old) = agent.current.replace(current) {
            agent.supersede(&old);
        }
        Ok(EnteredSession {
            epoch,
            orders,
            quarantined,
        })
    }

    /// Gives a session the number that was drawn for it; false when it is no longer the newest.
    pub fn renumber(&self, agent: &Text, epoch: u64, drawn: u64) -> bool {
        let mut known = self.lock();
        let Some(agent) = known.get_mut(agent) else {
            return false;
        };
        let current = agent.current.as_mut();
        let Some(current) = current.filter(|it| it.present.session == epoch) else {
            return false;
        };
        current.present.session = drawn;
        agent.newest = agent.newest.max(drawn);
        true
    }

    /// Whether two programs fight over this identity: neither gets work while they do.
    pub fn is_quarantined(&self, id: &Text) -> bool {
        let mut known = self.lock();
        let Some(agent) = known.get_mut(id) else {
            return false;
        };
        let quarantined = agent.is_quarantined();
        if let Some(current) = &mut agent.current {
            current.present.quarantined = quarantined;
        }
        quarantined
    }

    /// A session has ended; a newer one stays.
    pub fn leave(&self, id: &Text, epoch: u64) {
        let mut known = self.lock();
        if let Some(agent) = known.get_mut(id)
            && agent
                .current
                .as_ref()
                .is_some_and(|it| it.present.session == epoch)
            && let Some(ended) = agent.current.take()
        {
            let seen = agent_record::seen(id, &ended.present);
            drop(known);
            self.note_seen(seen);
        }
    }

    /// Notes what a session sees of its agent. False when it is no longer the newest.
    pub fn note(&self, agent: &Text, epoch: u64, note: impl FnOnce(&mut PresentAgent)) -> bool {
        let mut known = self.lock();
        let current = known.get_mut(agent).and_then(|it| it.current.as_mut());
        let Some(current) = current.filter(|it| it.present.session == epoch) else {
            return false;
        };
        note(&mut current.present);
        true
    }

    /// The agent has said something.
    pub fn heard(&self, agent: &Text, epoch: u64, now: Millis) {
        let mut known = self.lock();
        let current = known.get_mut(agent).and_then(|it| it.current.as_mut());
        if let Some(current) = current.filter(|it| it.present.session == epoch) {
            current.heard = Instant::now();
            current.present.seen_at = now;
        }
    }

    /// Hands an order to an agent's session; false when it has none here.
    pub fn order(&self, agent: &Text, order: SessionOrder) -> bool {
        let known = self.lock();
        let current = known.get(agent).and_then(|it| it.current.as_ref());
        current.is_some_and(|it| it.orders.give(order))
    }

    /// An agent with a session here, silent or not.
    pub fn here(&self, agent: &str) -> Option<PresentAgent> {
        let known = self.lock();
        let current = known.get(agent)?.current.as_ref()?;
        Some(current.present.clone())
    }

    /// Every agent with a session here: its id, and what it last said.
    pub fn all(&self) -> Vec<(Text, PresentAgent)> {
        let known = self.lock();
        let present = known.iter().filter_map(|(id, agent)| {
            let current = agent.current.as_ref()?;
            Some((id.clone(), current.present.clone()))
        });
        present.collect()
    }

    /// For "why is this waiting": slots that are free count as agents that are (D12), those of each
    /// runner pool by themselves.
    pub fn seen(&self) -> Vec<SeenAgent> {
        let known = self.lock();
        let current = known.values().filter_map(|it| it.current.as_ref());
        let takes_work = |it: &&CurrentSession| !(it.present.draining || it.present.quarantined);
        let online = current.filter(|it| it.is_online()).filter(takes_work);
        online.map(|it| it.present.seen()).collect()
    }

    /// Notes that something about an agent is to be written soon.
    pub fn note_present(&self, agent: &Text) {
        let seen = {
            let known = self.lock();
            let current = known.get(agent).and_then(|it| it.current.as_ref());
            current.map(|it| agent_record::seen(agent, &it.present))
        };
        seen.into_iter().for_each(|seen| self.note_seen(seen));
    }

    /// Keeps what is to be written; the latest word about an agent counts.
    pub fn note_seen(&self, seen: AgentSeen) {
        let mut unwritten = self.unwritten();
        let latest = unwritten.entry(seen.id.clone()).or_insert(seen.clone());
        if (seen.session, seen.seen_at) >= (latest.session, latest.seen_at) {
            *latest = seen;
        }
    }

    /// What is not written yet about an agent.
    pub fn unwritten_of(&self, agent: &str) -> Option<AgentSeen> {
        self.unwritten().get(agent).cloned()
    }

    /// Takes what is to be written.
    pub fn take_seen(&self) -> Vec<AgentSeen> {
        self.unwritten().drain().map(|(_, seen)| seen).collect()
    }

    fn unwritten(&self) -> MutexGuard<'_, HashMap<Text, AgentSeen>> {
        self.unwritten.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes one of the places for sessions that a credential has; none when all are taken.
    pub fn place(&self, principal: &Text) -> Option<SessionPlace> {
        self.places.try_take(principal.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Text, KnownAgent>> {
        // Entries are replaced whole: there is no state to spoil.
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl CurrentSession {
    fn is_online(&self) -> bool {
        self.heard.elapsed() < OFFLINE_AFTER
    }
}

impl KnownAgent {
    fn supersede(&mut self, old: &CurrentSession) {
        // A session without room for it is ending anyway.
        let _ = old.orders.give(SessionOrder::Superseded);
        self.superseded
            .retain(|(instance, _)| *instance != old.instance);
        if self.superseded.len() >= MAX_SUPERSEDED {
            self.superseded.pop_front();
        }
        self.superseded
            .push_back((old.instance.clone(), Instant::now()));
    }

    /// Only alternation counts: somebody who was superseded by another comes back.
    fn note_clash(&mut self, instance: &str) {
        let recent = |at: &Instant| at.elapsed() < CLASH_WINDOW;
        self.superseded.retain(|(_, at)| recent(at));
        self.clashes.retain(recent);
        let back = self.superseded.iter().any(|(it, _)| it == instance);
        let other = self
            .current
            .as_ref()
            .is_some_and(|it| it.instance != instance);
        if back && other && !instance.is_empty() {
            self.clashes.push_back(Instant::now());
        }
    }

    fn is_quarantined(&self) -> bool {
        let recent = self.clashes.iter();
        recent.filter(|at| at.elapsed() < CLASH_WINDOW).count() >= CLASHES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::capabilities::Group;

    fn enter(agents: &Agents, instance: &str) -> Result<EnteredSession, Quarantined> {
        agents.enter(&"a".into(), instance, About::default(), 0, Millis(5))
    }

    #[test]
    fn the_newest_session_wins_and_restarts_never_count() {
        // A26, F50
        let agents = Agents::default();
        let mut first = enter(&agents, "p1").unwrap();
        for n in 0..20 {
            let next = enter(&agents, &format!("p{}", n + 2)).unwrap();
            assert!(next.epoch > first.epoch && !next.quarantined);
            assert_eq!(first.orders.take(), Some(SessionOrder::Superseded));
            assert!(!agents.note(&"a".into(), first.epoch, |_| {}));
            first = next;
        }
        let again = enter(&agents, "p21").unwrap();
        assert!(!again.quarantined, "the same program reconnects");
    }

    #[test]
    fn two_programs_that_fight_over_an_identity_are_quarantined() {
        // A26, F50
        let agents = Agents::default();
        let mut outcomes = Vec::new();
        for n in 0..8 {
            let instance = if n % 2 == 0 { "one" } else { "two" };
            outcomes.push(enter(&agents, instance).map(|it| it.quarantined).ok());
        }
        // The third time that somebody superseded comes back is one too many. Who has the session
        // keeps it, without new work.
        assert_eq!(outcomes[..4], [Some(false); 4]);
        assert_eq!(outcomes[4..], [None, Some(true), None, Some(true)]);
    }

    #[test]
    fn a_pool_that_starts_with_all_its_slots_taken_is_busy_and_one_that_failed_is_down() {
        let agents = Agents::default();
        let group = |runner: &str| Group {
            runner: runner.to_owned(),
            slots: 2,
            ..Group::default()
        };
        let about = About {
            slots: 4,
            groups: vec![group("py"), group("rs")],
            ..About::default()
        };
        let entered = agents.enter(&"a".into(), "p", about, 0, Millis(5)).unwrap();
        let down = |busy: [u32; 2], last_error: &str| {
            let runners = ["py", "rs"].map(|name| RunnerPool {
                name: name.to_owned(),
                last_error: last_error.to_owned(),
                ..RunnerPool::default()
            });
            agents.note(&"a".into(), entered.epoch, |present| {
                present.busy = busy.to_vec();
                present.runners = runners.to_vec();
            });
            let seen = agents.here("a").unwrap().seen().down;
            let words = seen.iter().map(|(name, why)| format!("{name}: {why}"));
            words.collect::<Vec<_>>().join(", ")
        };
        let starting = "py: it is starting, rs: it is starting";
        assert_eq!(down([1, 0], ""), starting);
        assert_eq!(down([2, 0], ""), "rs: it is starting");
        assert_eq!(down([2, 2], ""), "");
        assert_eq!(down([2, 2], "exit 3"), "py: exit 3, rs: exit 3");
    }

    #[test]
    fn one_credential_does_not_take_every_place() {
        // T22
        let agents = Agents::default();
        let mut taken: Vec<SessionPlace> = (0..MAX_SESSIONS)
            .map(|_| agents.place(&"greedy".into()).unwrap())
            .collect();
        assert!(agents.place(&"greedy".into()).is_none());
        assert!(agents.place(&"other".into()).is_some());
        taken.pop();
        assert!(agents.place(&"greedy".into()).is_some());
    }

    #[test]
    fn what_was_last_seen_of_an_agent_is_what_is_written() {
        let agents = Agents::default();
        let first = enter(&agents, "p").unwrap();
        agents.note_present(&"a".into());
        let second = enter(&agents, "p").unwrap();
        agents.heard(&"a".into(), second.epoch, Millis(9));
        agents.heard(&"a".into(), first.epoch, Millis(99));
        agents.leave(&"a".into(), second.epoch);
        let seen = agents.unwritten_of("a").unwrap();
        assert_eq!((seen.session, seen.seen_at), (second.epoch, Millis(9)));
        assert_eq!(agents.take_seen(), [seen]);
        assert_eq!(agents.take_seen(), []);
    }

    #[test]
    fn a_session_that_ended_does_not_end_a_newer_one() {
        let agents = Agents::default();
        let first = enter(&agents, "p").unwrap();
        let second = enter(&agents, "p").unwrap();
        agents.leave(&"a".into(), first.epoch);
        assert!(agents.here("a").is_some());
        agents.leave(&"a".into(), second.epoch);
        assert!(agents.here("a").is_none());
    }
}
