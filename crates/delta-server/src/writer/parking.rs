//! Slots that wait for work, in memory.
//!
//! Owns who waits, for how long and with which capabilities. A slot's request is parked until it is
//! granted something, its wait is over, its connection closes, its runner asks again, or the server
//! stops. Slots with equal capabilities form a group: what fits one fits all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use delta_core::Text;
use delta_core::requirement::Capabilities;

use super::outbox::{Bells, LeaseTo, Outbox};
use super::{Ask, LeaseAnswer};
use crate::not_done::NotDone;

/// Parked requests of one server: an open connection each, and well beyond the slots that one
/// machine's sockets serve.
pub(super) const MAX_PARKED: usize = 50_000;

/// Remembered answers to "does this group fit that match key", per group: distinct requirements
/// are few; beyond this the memory starts anew.
const MAX_REMEMBERED: usize = 10_000;

pub(super) type SlotId = u64;

/// What a slot offers, with the text that equal offers share.
#[derive(Debug)]
pub struct Offer {
    pub capabilities: Capabilities,
    key: Text,
}

impl Offer {
    pub fn new(capabilities: Capabilities) -> Arc<Offer> {
        let key = capabilities.key();
        Arc::new(Offer { capabilities, key })
    }
}

pub(super) struct Slot {
    pub principal: Text,
    pub runner: Text,
    until: Instant,
    group: Text,
    answer: LeaseTo,
}

pub(super) struct Group {
    offer: Arc<Offer>,
    fits: HashMap<Text, bool>,
    pub slots: BTreeSet<SlotId>,
    /// Nobody has looked into the queue for this group since its first slot came. Once somebody
    /// has, and a slot still waits, nothing queued fits: what is queued later is matched when it
    /// comes.
    pub unserved: bool,
}

impl Group {
    pub fn fits(&mut self, key: &Text) -> bool {
        if let Some(known) = self.fits.get(key) {
            return *known;
        }
        if self.fits.len() >= MAX_REMEMBERED {
            self.fits.clear();
        }
        let fits = self.offer.capabilities.fits(key);
        self.fits.insert(key.clone(), fits);
        fits
    }
}

#[derive(Default)]
pub(super) struct Parking {
    next: SlotId,
    slots: BTreeMap<SlotId, Slot>,
    by_runner: HashMap<(Text, Text), SlotId>,
    deadlines: BTreeSet<(Instant, SlotId)>,
    pub groups: BTreeMap<Text, Group>,
}

impl Parking {
    /// Parks a request. The same runner's earlier one goes home empty.
    pub fn park(&mut self, ask: Ask) -> Option<SlotId> {
        let runner = (ask.principal.clone(), ask.runner.clone());
        if let Some(earlier) = self.by_runner.get(&runner).copied() {
            self.answer(earlier, Ok(None), &mut Bells::default());
        }
        if self.slots.len() >= MAX_PARKED {
            ask.answer
                .send(Err(NotDone::Overloaded), &mut Bells::default());
            return None;
        }
        self.next += 1;
        let id = self.next;
        let group = ask.offer.key.clone();
        self.by_runner.insert(runner, id);
        self.deadlines.insert((ask.until, id));
        let entry = self.groups.entry(group.clone()).or_insert_with(|| Group {
            offer: ask.offer,
            fits: HashMap::new(),
            slots: BTreeSet::new(),
            unserved: true,
        });
        entry.unserved |= entry.slots.is_empty();
        entry.slots.insert(id);
        let slot = Slot {
            principal: ask.principal,
            runner: ask.runner,
            until: ask.until,
            group,
            answer: ask.answer,
        };
        self.slots.insert(id, slot);
        Some(id)
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn get(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(&id)
    }

    /// Ends a wait with an answer.
    pub fn answer(&mut self, id: SlotId, answer: LeaseAnswer, bells: &mut Bells) {
        if let Some(slot) = self.remove(id) {
            slot.answer.send(answer, bells);
        }
    }

    /// The session that a slot belongs to.
    pub fn session(&self, id: SlotId) -> Option<Arc<Outbox>> {
        self.slots.get(&id)?.answer.session().cloned()
    }

    fn remove(&mut self, id: SlotId) -> Option<Slot> {
        let slot = self.slots.remove(&id)?;
        self.deadlines.remove(&(slot.until, id));
        self.by_runner
            .remove(&(slot.principal.clone(), slot.runner.clone()));
        if let Some(group) = self.groups.get_mut(&slot.group) {
            group.slots.remove(&id);
            if group.slots.is_empty() {
                self.groups.remove(&slot.group);
            }
        }
        Some(slot)
    }

    /// Forgets slots whose connection is gone.
    pub fn drop_closed(&mut self) {
        let gone: Vec<SlotId> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.answer.is_closed())
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.remove(id);
        }
    }

    /// The slots of a group that still have somebody listening, longest waiting first.
    pub fn listening(&mut self, group: &Text, most: usize) -> Vec<SlotId> {
        let Some(group) = self.groups.get(group) else {
            return Vec::new();
        };
        let first: Vec<SlotId> = group.slots.iter().copied().take(most).collect();
        let mut listening = Vec::with_capacity(first.len());
        for id in first {
            if self
                .slots
                .get(&id)
                .is_some_and(|slot| slot.answer.is_closed())
            {
                self.remove(id);
            } else {
                listening.push(id);
            }
        }
        listening
    }

    /// Groups with their longest waiting slot first.
    pub fn groups_in_order(&self) -> Vec<Text> {
        let mut order: Vec<(SlotId, Text)> = self
            .groups
            .iter()
            .filter_map(|(key, group)| Some((*group.slots.first()?, key.clone())))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, key)| key).collect()
    }

    /// What was found was not granted after all: look again for everybody.
    pub fn look_again(&mut self) {
        for group in self.groups.values_mut() {
            group.unserved = true;
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Sends home whoever has waited long enough.
    pub fn release_due(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.answer(id, Ok(None), &mut Bells::default());
        }
    }

    pub fn release_all(&mut self) {
        while let Some((_, id)) = self.deadlines.first().copied() {
            self.answer(id, Ok(None), &mut Bells::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::oneshot;

    fn ask(runner: &str, tags: &[&str]) -> (Ask, oneshot::Receiver<LeaseAnswer>) {
        let (answer, answered) = oneshot::channel();
        let ask = Ask {
            principal: "p".into(),
            runner: runner.into(),
            offer: Offer::new(Capabilities::parse(tags.iter().copied())),
            until: Instant::now() + Duration::from_secs(60),
            answer: LeaseTo::One(answer),
        };
        (ask, answered)
    }

    #[test]
    fn a_runner_that_asks_again_replaces_its_parked_request() {
        // A67
        let mut parking = Parking::default();
        let (first, mut answered) = ask("r", &["linux"]);
        parking.park(first);
        let (second, _keep) = ask("r", &["linux"]);
        parking.park(second);
        assert!(matches!(answered.try_recv(), Ok(Ok(None))));
        assert_eq!(parking.len(), 1);
    }

    #[test]
    fn a_slot_whose_connection_is_gone_is_forgotten() {
        // A67
        let mut parking = Parking::default();
        let (gone, answered) = ask("a", &["linux"]);
        let (here, _keep) = ask("b", &["linux"]);
        parking.park(gone);
        let here = parking.park(here).unwrap();
        drop(answered);
        let group = parking.groups_in_order().remove(0);
        assert_eq!(parking.listening(&group, 10), [here]);
        assert_eq!(parking.len(), 1);
    }

    #[test]
    fn equal_capabilities_share_a_group_and_its_memory() {
        let mut parking = Parking::default();
        let kept: Vec<_> = ["a", "b"]
            .map(|runner| {
                let (ask, keep) = ask(runner, &["linux", "gpu"]);
                parking.park(ask);
                keep
            })
            .into();
        assert_eq!(parking.groups.len(), 1);
        let group = parking.groups.values_mut().next().unwrap();
        assert!(group.fits(&"gpu linux".into()));
        assert!(!group.fits(&"windows".into()));
        drop(kept);
        parking.drop_closed();
        assert!(parking.groups.is_empty());
    }
}
