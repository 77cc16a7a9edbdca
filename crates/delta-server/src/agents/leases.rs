//! What one session holds: its slots, and the lease in each.
//!
//! Owns capacity as the session sees it: a slot is asked for again when its lease is over, and
//! never more slots than the agent has, whatever it held before (A28). Whether a lease is good is
//! not judged here.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use delta_core::attempt::LateLog;
use delta_core::lease::Stale;
use delta_core::rights::Bond;
use delta_core::{Cause, Command, Digest, LeaseKey, LeaseState, Millis, Span, Text};

use crate::writer::{Receipt, Ticket};

/// A lease the agent holds, or held a moment ago.
#[derive(Debug)]
pub struct Held {
    pub slot: u32,
    /// Who the server granted it to: agent and slot.
    pub runner: Text,
    /// SHA-256 of its token.
    token: Digest,
    /// The agent said that it takes it.
    pub accepted: bool,
    /// It was given in this session; otherwise the agent may not know of it.
    pub given_here: bool,
    /// Until when the server lets it live, as last heard.
    pub until: Millis,
    /// Since when heartbeats leave it out.
    missing: Option<Instant>,
    /// The agent's last word was accepted: what log is still to come, and until when.
    pub ended: Option<Ended>,
    /// Bytes of log that the agent's last word declared.
    pub declared: u64,
    /// The agent's last word, kept back until its log, its results and its artifacts are on disk.
    pub last_word: Option<Box<Word>>,
    pub waits_for_log: bool,
    pub waits_for_results: bool,
    /// It has artifacts, or its agent says so.
    pub artifacts: bool,
    /// So many of them, says its agent's last word.
    pub counted: u32,
    /// The agent was told to end it.
    pub canceled: bool,
    /// A renewal is on its way to the writer; the newest that came meanwhile waits for its answer,
    /// so that no agent renews faster than it is answered (D15).
    pub renewing: bool,
    pub renew_again: Option<Box<Word>>,
    /// What to make of the agent's CANCELLED if nobody asked for it (A34).
    pub unless_canceled: Option<Box<Command>>,
}

/// A message about a lease, as it was received: its result, or a renewal.
pub struct Word {
    pub ticket: Ticket,
    pub receipt: Receipt,
    pub command: Command,
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Word({:?})", self.ticket)
    }
}

/// What may still come of a lease that was completed (I25), and until when.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub log_length: u64,
    pub until: Instant,
}

/// How long the rest of a log is taken after its lease was completed (I25).
pub const LOG_AFTER_END: Duration = Duration::from_secs(10 * 60);
/// Leases that are over and remembered for the rest of their log, and for a repeated result; the
/// oldest goes first. An agent has few slots, and sends the rest at once.
const MAX_ENDED: usize = 1_024;

/// A lease found in the store when a session begins.
#[derive(Clone, Debug)]
pub struct Found {
    pub lease: LeaseKey,
    pub slot: u32,
    pub runner: Text,
    pub token: Digest,
    pub accepted: bool,
    pub until: Millis,
    /// It was asked to end.
    pub cancel: Option<Asked>,
}

/// A cancel that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub cause: Cause,
    pub remaining: Span,
}

/// A lease that this session did not hear of, found by what the agent says about it.
#[derive(Clone, Debug)]
pub struct Past {
    pub lease: LeaseKey,
    pub runner: Text,
    pub token: Digest,
    pub accepted: bool,
    pub ended: Ended,
    /// Why it is over, as its holder is told.
    pub why: Stale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    Parked,
    Busy,
}

pub struct Leases {
    agent: Text,
    slots: HashMap<u32, Slot>,
    most: u32,
    held: HashMap<LeaseKey, Held>,
    /// Those of them that were completed, in order.
    ended: VecDeque<LeaseKey>,
    /// Counts requests for work, so that an answer to an old one is told from one to the last.
    round: u32,
}

impl Leases {
    pub fn new(agent: Text, most: u32, found: Vec<Found>) -> Leases {
        let mut slots: HashMap<u32, Slot> = (1..=most).map(|slot| (slot, Slot::Free)).collect();
        let mut held = HashMap::new();
        for it in found {
            slots.insert(it.slot, Slot::Busy);
            held.insert(
                it.lease,
                Held::new(it.slot, it.runner, it.token, it.accepted, it.until),
            );
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

    pub fn get(&self, lease: LeaseKey) -> Option<&Held> {
        self.held.get(&lease)
    }

    pub fn get_mut(&mut self, lease: LeaseKey) -> Option<&mut Held> {
        self.held.get_mut(&lease)
    }

    /// Leases that are not over.
    pub fn live(&self) -> impl Iterator<Item = (LeaseKey, &Held)> {
        let live = self.held.iter().filter(|(_, held)| held.ended.is_none());
        live.map(|(lease, held)| (*lease, held))
    }

    pub fn live_count(&self) -> u32 {
        u32::try_from(self.held.len() - self.ended.len()).unwrap_or(u32::MAX)
    }

    /// These are all that are live, as the store has them now: what else was held is over. Says
    /// whether there was any.
    pub fn keep_only(&mut self, found: &[Found]) -> bool {
        let live: HashSet<LeaseKey> = found.iter().map(|it| it.lease).collect();
        let over: Vec<LeaseKey> = self
            .live()
            .map(|(lease, _)| lease)
            .filter(|lease| !live.contains(lease))
            .collect();
        over.iter().for_each(|lease| self.over(*lease));
        !over.is_empty()
    }

    /// Slots with a lease in them.
    pub fn busy_slots(&self) -> impl Iterator<Item = u32> {
        let busy = self.slots.iter().filter(|(_, slot)| **slot == Slot::Busy);
        busy.map(|(number, _)| *number)
    }

    /// Takes the free slots to ask for work with, as (slot, round, runner).
    pub fn park(&mut self) -> Vec<(u32, u32, Text)> {
        let taken = self.slots.values().filter(|slot| **slot != Slot::Free);
        let room = (self.most as usize).saturating_sub(taken.count());
        let mut free: Vec<u32> = self
            .slots
            .iter()
            .filter(|(number, slot)| **slot == Slot::Free && **number <= self.most)
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
                self.slots.insert(slot, Slot::Parked);
                (slot, round, format!("{}/{slot}", self.agent).into())
            })
            .collect()
    }

    /// Takes back every request for work: what is still answered to it is old.
    pub fn unpark(&mut self) {
        self.round = self.round.wrapping_add(1);
        for slot in self.slots.values_mut() {
            if *slot == Slot::Parked {
                *slot = Slot::Free;
            }
        }
    }

    /// Takes back the requests of these slots: they are asked for again, with what they offer now.
    pub fn unpark_between(&mut self, (first, last): (u32, u32)) {
        for (number, slot) in &mut self.slots {
            if *slot == Slot::Parked && (first..=last).contains(number) {
                *slot = Slot::Free;
            }
        }
    }

    /// A request for work came back empty.
    pub fn not_granted(&mut self, slot: u32, round: u32) {
        if round == self.round && self.slots.get(&slot) == Some(&Slot::Parked) {
            self.free(slot);
        }
    }

    pub fn granted(&mut self, slot: u32, lease: LeaseKey, token: Digest, until: Millis) {
        let runner: Text = format!("{}/{slot}", self.agent).into();
        self.slots.insert(slot, Slot::Busy);
        let held = Held {
            given_here: true,
            ..Held::new(slot, runner, token, false, until)
        };
        self.held.insert(lease, held);
    }

    /// The lease is over and so is everything about it.
    pub fn over(&mut self, lease: LeaseKey) {
        let Some(held) = self.held.remove(&lease) else {
            return;
        };
        match held.ended {
            None => self.free(held.slot),
            Some(_) => self.ended.retain(|it| *it != lease),
        }
    }

    /// The lease was completed; the rest of its log may follow.
    pub fn ended(&mut self, lease: LeaseKey) {
        let length = self.held.get(&lease).map_or(0, |held| held.declared);
        self.end_with_log(lease, length, LOG_AFTER_END);
    }

    /// The lease is over; what its holder has of the log is taken for a while.
    pub fn end_with_log(&mut self, lease: LeaseKey, log_length: u64, rest: Duration) {
        if let Some(held) = self.held.get_mut(&lease).filter(|it| it.ended.is_none()) {
            let until = Instant::now() + rest;
            held.ended = Some(Ended { log_length, until });
            let slot = held.slot;
            self.free(slot);
            self.note_ended(lease);
        }
    }

    /// A lease of an earlier session of this agent. It takes no slot of this one.
    pub fn remember(&mut self, past: Past) {
        if self.held.contains_key(&past.lease) {
            return;
        }
        let mut held = Held::new(0, past.runner, past.token, past.accepted, Millis::ZERO);
        held.ended = Some(past.ended);
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

    /// Forgets completed leases whose log does not come any more.
    pub fn forget_ended(&mut self) {
        while let Some(oldest) = self.ended.front().copied() {
            let ended = self.held.get(&oldest).and_then(|held| held.ended);
            if ended.is_some_and(|it| Instant::now() < it.until) {
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
            self.slots.insert(slot, Slot::Free);
        }
    }

    /// Accepted leases that a heartbeat leaves out for the second time, at least `interval` after
    /// the first (A63).
    pub fn disowned(
        &mut self,
        listed: &HashSet<LeaseKey>,
        interval: Duration,
        now: Instant,
    ) -> Vec<LeaseKey> {
        let mut gone = Vec::new();
        for (lease, held) in &mut self.held {
            if !held.accepted || held.ended.is_some() || listed.contains(lease) {
                held.missing = None;
                continue;
            }
            let since = *held.missing.get_or_insert(now);
            if since != now && now.duration_since(since) >= interval {
                gone.push(*lease);
            }
        }
        gone
    }
}

impl Held {
    /// What its rights hang on, as far as this session has heard.
    pub fn bond<'a>(&'a self, principal: &'a Text, now: Millis, floor: Millis) -> Bond<'a> {
        let late = self.ended.map(|ended| {
            let left = ended.until.saturating_duration_since(Instant::now());
            let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
            LateLog {
                until: now + Span(left),
                up_to: Some(ended.log_length),
            }
        });
        let state = match (self.ended, self.accepted) {
            (Some(_), _) => LeaseState::Completed,
            (None, true) => LeaseState::Active,
            (None, false) => LeaseState::Granted,
        };
        Bond {
            token: &self.token,
            principal,
            state,
            until: self.until.max(floor),
            late,
        }
    }

    fn new(slot: u32, runner: Text, token: Digest, accepted: bool, until: Millis) -> Held {
        Held {
            slot,
            runner,
            token,
            accepted,
            given_here: false,
            until,
            missing: None,
            ended: None,
            declared: 0,
            last_word: None,
            waits_for_log: false,
            waits_for_results: false,
            artifacts: false,
            counted: 0,
            canceled: false,
            renewing: false,
            renew_again: None,
            unless_canceled: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delta_core::RunId;

    fn key(n: u32) -> LeaseKey {
        RunId(1).job(n).attempt(1).lease(1)
    }

    fn found(slot: u32) -> Found {
        Found {
            lease: key(slot),
            slot,
            runner: format!("a/{slot}").into(),
            token: [0; 32],
            accepted: true,
            until: Millis(1),
            cancel: None,
        }
    }

    fn slots(parked: &[(u32, u32, Text)]) -> Vec<u32> {
        parked.iter().map(|(slot, ..)| *slot).collect()
    }

    #[test]
    fn an_agent_with_fewer_slots_than_before_gets_nothing_until_it_has_room() {
        // A28, I21
        let mut leases = Leases::new("a".into(), 2, vec![found(3), found(4)]);
        assert_eq!(slots(&leases.park()), [0_u32; 0]);
        leases.over(key(3));
        assert_eq!(slots(&leases.park()), [1]);
        leases.over(key(4));
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
        leases.ended(key(1));
        assert_eq!(slots(&leases.park()), [1]);
        assert_eq!(leases.live_count(), 0);
        leases.over(key(1));
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
            leases.ended(key(n));
        }
        assert_eq!((leases.live_count(), leases.held.len()), (0, MAX_ENDED));
        assert!(leases.get(key(4_999)).is_some() && leases.get(key(0)).is_none());
        leases.over(key(4_999));
        assert_eq!(leases.live_count(), 0);
    }

    #[test]
    fn a_lease_of_an_earlier_session_takes_no_slot_and_frees_none() {
        // A18
        let mut leases = Leases::new("a".into(), 1, Vec::new());
        leases.park();
        let past = |n| Past {
            lease: key(n),
            runner: "a/1".into(),
            token: [0; 32],
            accepted: true,
            ended: Ended {
                log_length: 0,
                until: Instant::now(),
            },
            why: Stale::AlreadyFinal,
        };
        leases.remember(past(7));
        leases.remember(past(7));
        assert_eq!((leases.live_count(), leases.live().count()), (0, 0));
        leases.ended(key(7));
        leases.over(key(7));
        assert_eq!(slots(&leases.park()), [0_u32; 0], "it is asked for already");
        leases.remember(past(8));
        leases.forget_ended();
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
