//! What the slots of a session take: those of a runner pool its functions, the rest whatever else
//! the agent does.
//!
//! A slot holds one lease, and that is judged where every grant is. With slots of its own a pool
//! has room of its own: a burst for one does not take the slots of another.

use std::sync::Arc;

use super::capabilities::About;
use crate::writer::Offer;

/// Each with the number of its last slot, rising.
pub struct Offers(Vec<(u32, Arc<Offer>)>);

impl Offers {
    pub fn of(about: &About) -> Offers {
        let mut last = 0;
        let offers = about.offers().into_iter().map(|(slots, capabilities)| {
            last += slots;
            (last, Offer::new(capabilities))
        });
        Offers(offers.collect())
    }

    fn place(&self, slot: u32) -> usize {
        let last = self.0.len() - 1;
        self.0.partition_point(|(end, _)| *end < slot).min(last)
    }

    /// What this slot offers, counted from 1.
    pub fn of_slot(&self, slot: u32) -> Arc<Offer> {
        self.0[self.place(slot)].1.clone()
    }

    /// How many of these slots belong to each offer, in order.
    pub fn busy(&self, slots: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut busy = vec![0; self.0.len()];
        slots.for_each(|slot| busy[self.place(slot)] += 1);
        busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::capabilities::Group;

    #[test]
    fn a_slot_belongs_to_one_offer() {
        let group = |runner: &str, slots| Group {
            runner: runner.to_owned(),
            slots,
            ..Group::default()
        };
        let about = About {
            slots: 6,
            groups: vec![group("a", 2), group("b", 3)],
            ..About::default()
        };
        let offers = Offers::of(&about);
        let places: Vec<usize> = (1..=7).map(|slot| offers.place(slot)).collect();
        assert_eq!(places, [0, 0, 1, 1, 1, 2, 2], "one too many is the last");
        assert_eq!(offers.busy([1, 4, 5].into_iter()), [1, 2, 0]);
        assert_eq!(Offers::of(&About::default()).place(1), 0);
    }
}
