//! What one session holds: its slots, and the lease in each.
//!
//! Owns capacity as the session sees it: a slot is asked for again when its lease is over, and
//! never more slots than the agent has, whatever it held before. What happens to one lease is told
//! by [`HeldLease`]; whether a lease is good is not judged here.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use delta_core::lease::Stale;
use delta_core::{Cause, Command, Digest, LeaseKey, Millis, Span, Text};

use super::held_lease::{
    HeldLease, LateLogWindow, LeaseAction, LeaseActions, LeaseEvent, Origin, Standing,
};
use crate::writer::{Receipt, Ticket};

/// A message about a lease, as it was received: its result, or a renewal.
pub struct SessionMessage {
    pub ticket: Ticket,
    pub receipt: Receipt,
    pub command: Command,
}

impl std::fmt::Debug for SessionMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionMessage({:?})", self.ticket)
    }
}

pub type SessionLease = HeldLease<SessionMessage>;
pub type SessionLeaseEvent = LeaseEvent<SessionMessage>;
pub type SessionLeaseActions = LeaseActions<SessionMessage>;

/// How long the rest of a log is taken after its lease was completed.
pub const LOG_AFTER_END: Duration = Duration::from_secs(10 * 60);
/// Leases that are over and remembered for the rest of their log, and for a repeated result; the
/// oldest goes first. An agent has few slots, and sends the rest at once.
const MAX_ENDED: usize = 1_024;

/// A lease found in the store when a session begins.
#[derive(Clone, Debug)]
pub struct StoredLease {
    pub lease: LeaseKey,
    pub slot: u32,
    pub runner: Text,
    pub token: Digest,
    pub accepted: bool,
    pub until: Millis,
    /// It was asked to end.
    pub cancel: Option<PendingCancel>,
}

/// A cancel that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct PendingCancel {
    pub cause: Cause,
    pub remaining: Span,
}

/// A lease that this session did not hear of, found by what the agent says about it.
#[derive(Clone, Debug)]
pub struct EndedLease {
    pub lease: LeaseKey,
    pub runner: Text,
    pub token: Digest,
    pub ended: LateLogWindow,
    /// Why it is over, as its holder is told.
    pub why: Stale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    Parked,
    Busy,
}

pub struct Leases {
    agent: Text,
    slots: HashMap<u32, SlotState>,
    most: u32,
    held: HashMap<LeaseKey, SessionLease>,
    /// Those of them that have ended, in order.
    ended: VecDeque<LeaseKey>,
    /// Counts requests for work, so that an answer to an old one is told from one to the last.
    round: u32,
}

impl Leases {
    pub fn new(agent: Text, most: u32, found: Vec<StoredLease>) -> Leases {
        let mut slots: HashMap<u32, SlotState> =
            (1..=most).map(|slot| (slot, SlotState::Free)).collect();
        let mut held = HashMap::new();
        for stored in found {
            slots.insert(stored.slot, SlotState::Busy);
            held.insert(stored.lease, stored.into_held());
        }
        Leases {
            agent,
            slots,
            most,
            held,
            ended: VecDeque::new(),
            round: 0,
        }
    }

    pub fn get(&self, lease: LeaseKey) -> Option<&SessionLease> {
        self.held.get(&lease)
    }

    /// Tells a lease what happened, and says what is left to do. One that is not held hears
    /// nothing.
    pub fn step(&mut self, lease: LeaseKey, event: SessionLeaseEvent) -> SessionLeaseActions {
        let Some(held) = self.held.get_mut(&lease) else {
            return [None, None];
        };
        let slot = held.slot;
        held.step(event).map(|action| match action {
            Some(LeaseAction::FreeSlot) => {
                self.free(slot);
                self.note_ended(lease);
                None
            }
            Some(LeaseAction::Forget) => {
                self.forget(lease);
                None
            }
            action => action,
        })
    }

    /// The server lets it live until then.
    pub fn lives_until(&mut self, lease: LeaseKey, until: Millis) {
        if let Some(held) = self.held.get_mut(&lease) {
            held.until = until;
        }
    }

    /// Leases that are not over.
    pub fn live(&self) -> impl Iterator<Item = (LeaseKey, &SessionLease)> {
        let live = self.held.iter().filter(|(_, held)| held.ended().is_none());
        live.map(|(lease, held)| (*lease, held))
    }

    pub fn live_count(&self) -> u32 {
        u32::try_from(self.held.len() - self.ended.len()).unwrap_or(u32::MAX)
    }

    /// These are all that are live, as the store has them now: what else was held is over. Says
    /// whether there was any.
    pub fn keep_only(&mut self, found: &[StoredLease]) -> bool {
        let live: HashSet<LeaseKey> = found.iter().map(|stored| stored.lease).collect();
        let over: Vec<LeaseKey> = self
            .live()
            .map(|(lease, _)| lease)
            .filter(|lease| !live.contains(lease))
            .collect();
        over.iter().for_each(|lease| self.forget(*lease));
        !over.is_empty()
    }

    /// Slots with a lease in them.
    pub fn busy_slots(&self) -> impl Iterator<Item = u32> {
        let busy = self
            .slots
            .iter()
            .filter(|(_, slot)| **slot == SlotState::Busy);
        busy.map(|(number, _)| *number)
    }

    /// Takes the free slots to ask for work with, as (slot, round, runner).
    pub fn park(&mut self) -> Vec<(u32, u32, Text)> {
        let taken = self.slots.values().filter(|slot| **slot != SlotState::Free);
        let room = (self.most as usize).saturating_sub(taken.count());
        let mut free: Vec<u32> = self
            .slots
            .iter()
            .filter(|(number, slot)| **slot == SlotState::Free && **number <= self.most)
            .map(|(number, _)| *number)
            .collect();
        free.sort_unstable();
        free.truncate(room);
        if free.is_empty() {
            return Vec::new();
        }
        self.round = self.round.wrapping_add(1);
        let round = self.round;
        free.into_iter()
            .map(|slot| {
                self.slots.insert(slot, SlotState::Parked);
                (slot, round, format!("{}/{slot}", self.agent).into())
            })
            .collect()
    }

    /// Takes back every request for work: what is still answered to it is old.
    pub fn unpark(&mut self) {
        self.round = self.round.wrapping_add(1);
        for slot in self.slots.values_mut() {
            if *slot == SlotState::Parked {
                *slot = SlotState::Free;
            }
        }
    }

    /// Takes back the requests of these slots: they are asked for again, with what they offer now.
    pub fn unpark_between(&mut self, (first, last): (u32, u32)) {
        for (number, slot) in &mut self.slots {
            if *slot == SlotState::Parked && (first..=last).contains(number) {
                *slot = SlotState::Free;
            }
        }
    }

    /// A request for work came back empty.
    pub fn not_granted(&mut self, slot: u32, round: u32) {
        if round == self.round && self.slots.get(&slot) == Some(&SlotState::Parked) {
            self.free(slot);
        }
    }

    pub fn granted(&mut self, slot: u32, lease: LeaseKey, token: Digest, until: Millis) {
        let runner: Text = format!("{}/{slot}", self.agent).into();
        self.slots.insert(slot, SlotState::Busy);
        let held = HeldLease::new(
            slot,
            runner,
            token,
            Standing::Offered,
            until,
            Origin::Granted,
        );
        self.held.insert(lease, held);
    }

    /// The lease is over and so is everything about it.
    pub fn forget(&mut self, lease: LeaseKey) {
        let Some(held) = self.held.remove(&lease) else {
            return;
        };
        match held.ended() {
            None => self.free(held.slot),
            Some(_) => self.ended.retain(|ended| *ended != lease),
        }
    }

    /// A lease of an earlier session of this agent. It takes no slot of this one.
    pub fn remember(&mut self, past: EndedLease) {
        if self.held.contains_key(&past.lease) {
            return;
        }
        let ended = Standing::Ended(past.ended);
        let held = HeldLease::new(
            0,
            past.runner,
            past.token,
            ended,
            Millis::ZERO,
            Origin::Stored,
        );
        self.held.insert(past.lease, held);
        self.note_ended(past.lease);
    }

    fn note_ended(&mut self, lease: LeaseKey) {
        self.ended.push_back(lease);
        if self.ended.len() > MAX_ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.held.remove(&oldest);
        }
    }

    /// Forgets ended leases whose log does not come any more.
    pub fn forget_ended(&mut self, now: Instant) {
        while let Some(oldest) = self.ended.front().copied() {
            let ended = self.held.get(&oldest).and_then(SessionLease::ended);
            if ended.is_some_and(|window| now < window.until) {
                break;
            }
            self.held.remove(&oldest);
            self.ended.pop_front();
        }
    }

    fn free(&mut self, slot: u32) {
        if slot > self.most {
            self.slots.remove(&slot);
        } else {
            self.slots.insert(slot, SlotState::Free);
        }
    }

    /// Accepted leases that a heartbeat leaves out for the second time, at least `interval` after
    /// the first.
    pub fn disowned(
        &mut self,
        listed: &HashSet<LeaseKey>,
        interval: Duration,
        now: Instant,
    ) -> Vec<LeaseKey> {
        let mut gone = Vec::new();
        for (lease, held) in &mut self.held {
            if !held.is_accepted() || listed.contains(lease) {
                held.left_out = None;
                continue;
            }
            let since = *held.left_out.get_or_insert(now);
            if since != now && now.duration_since(since) >= interval {
                gone.push(*lease);
            }
        }
        gone
    }
}

impl StoredLease {
    fn into_held(self) -> SessionLease {
        let standing = if self.accepted {
            Standing::Accepted
        } else {
            Standing::Offered
        };
        HeldLease::new(
            self.slot,
            self.runner,
            self.token,
            standing,
            self.until,
            Origin::Stored,
        )
    }
}

#[cfg(test)]
mod tests {
    use delta_core::RunId;

    use super::super::held_lease::Judgement;
    use super::*;

    fn key(n: u32) -> LeaseKey {
        RunId(1).job(n).attempt(1).lease(1)
    }

    fn found(slot: u32) -> StoredLease {
        StoredLease {
            lease: key(slot),
            slot,
            runner: format!("a/{slot}").into(),
            token: [0; 32],
            accepted: true,
            until: Millis(1),
            cancel: None,
        }
    }

    /// The last word was taken.
    fn taken() -> SessionLeaseEvent {
        let late_log_until = Instant::now() + LOG_AFTER_END;
        LeaseEvent::Judged(Judgement::Final { late_log_until })
    }

    fn slots(parked: &[(u32, u32, Text)]) -> Vec<u32> {
        parked.iter().map(|(slot, ..)| *slot).collect()
    }

    #[test]
    fn an_agent_with_fewer_slots_than_before_gets_nothing_until_it_has_room() {
        // A28, I21
        let mut leases = Leases::new("a".into(), 2, vec![found(3), found(4)]);
        assert_eq!(slots(&leases.park()), [0_u32; 0]);
        leases.forget(key(3));
        assert_eq!(slots(&leases.park()), [1]);
        leases.forget(key(4));
        assert_eq!(slots(&leases.park()), [2]);
        assert_eq!(slots(&leases.park()), [0_u32; 0]);
    }

    #[test]
    fn a_lease_that_ended_before_anybody_listened_gives_its_slot_back() {
        let mut leases = Leases::new("a".into(), 3, vec![found(1), found(2)]);
        assert_eq!(slots(&leases.park()), [3]);
        assert!(leases.keep_only(&[found(2)]));
        assert_eq!(leases.live_count(), 1);
        assert_eq!(slots(&leases.park()), [1]);
        assert!(!leases.keep_only(&[found(2)]), "nothing else was over");
    }

    #[test]
    fn a_slot_is_free_again_when_its_lease_is_over() {
        let mut leases = Leases::new("a".into(), 1, Vec::new());
        let parked = leases.park();
        assert_eq!(parked[0].2, "a/1".into());
        leases.granted(1, key(1), [0; 32], Millis(1));
        assert_eq!(slots(&leases.park()), [0_u32; 0]);
        leases.step(key(1), taken());
        assert_eq!(slots(&leases.park()), [1]);
        assert_eq!(leases.live_count(), 0);
        leases.forget(key(1));
        assert_eq!(
            slots(&leases.park()),
            [0_u32; 0],
            "the slot is asked for already"
        );
    }

    #[test]
    fn completed_leases_are_remembered_within_bounds() {
        let mut leases = Leases::new("a".into(), 1, Vec::new());
        for n in 0..5_000 {
            leases.granted(1, key(n), [0; 32], Millis(1));
            assert_eq!(leases.live_count(), 1);
            leases.step(key(n), taken());
        }
        assert_eq!((leases.live_count(), leases.held.len()), (0, MAX_ENDED));
        assert!(leases.get(key(4_999)).is_some() && leases.get(key(0)).is_none());
        leases.forget(key(4_999));
        assert_eq!(leases.live_count(), 0);
    }

    #[test]
    fn a_lease_of_an_earlier_session_takes_no_slot_and_frees_none() {
        // A18
        let mut leases = Leases::new("a".into(), 1, Vec::new());
        leases.park();
        let past = |n| EndedLease {
            lease: key(n),
            runner: "a/1".into(),
            token: [0; 32],
            ended: LateLogWindow {
                log_length: 0,
                until: Instant::now(),
            },
            why: Stale::AlreadyFinal,
        };
        leases.remember(past(7));
        leases.remember(past(7));
        assert_eq!((leases.live_count(), leases.live().count()), (0, 0));
        leases.step(key(7), taken());
        leases.forget(key(7));
        assert_eq!(slots(&leases.park()), [0_u32; 0], "it is asked for already");
        leases.remember(past(8));
        leases.forget_ended(Instant::now());
        assert!(leases.held.is_empty() && leases.ended.is_empty());
    }

    #[test]
    fn an_answer_to_an_old_request_changes_nothing() {
        let mut leases = Leases::new("a".into(), 1, Vec::new());
        let (slot, old, _) = leases.park().remove(0);
        leases.unpark();
        assert_eq!(slots(&leases.park()), [1]);
        leases.not_granted(slot, old);
        assert_eq!(slots(&leases.park()), [0_u32; 0]);
    }

    #[test]
    fn a_lease_that_two_heartbeats_leave_out_is_disowned() {
        // A63
        let mut leases = Leases::new("a".into(), 2, vec![found(1), found(2)]);
        let listed = HashSet::from([key(2)]);
        let (interval, now) = (Duration::from_secs(20), Instant::now());
        let mut at = |after| leases.disowned(&listed, interval, now + Duration::from_secs(after));
        assert_eq!(at(0), []);
        assert_eq!(at(19), []);
        assert_eq!(at(20), [key(1)]);
    }
}
