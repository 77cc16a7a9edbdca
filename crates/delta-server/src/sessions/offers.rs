//! What the slots of a session take: those of a runner pool its functions, the rest whatever else
//! the agent does.
//!
//! A slot holds one lease, and that is judged where every grant is. With slots of its own a pool
//! has room of its own: a burst for one does not take the slots of another. While no process of a
//! pool comes up, its slots offer nothing: a call would only cost an attempt there.

use std::sync::Arc;

use delta_core::requirement::Capabilities;

use super::capabilities::About;
use super::runners::RunnerPool;
use crate::writer::Offer;

pub struct Offers {
    all: Vec<SlotOffer>,
    nothing: Arc<Offer>,
}

/// What some slots offer.
struct SlotOffer {
    /// The number of the last of them, rising.
    last: u32,
    offer: Arc<Offer>,
    /// Whose pool's they are.
    runner: Option<String>,
    /// No process of it is there, and the last one failed.
    down: bool,
}

impl Offers {
    pub fn of(about: &About) -> Offers {
        let mut last = 0;
        // The groups come first, in their order.
        let runners = about.groups.iter().map(|it| Some(it.runner.clone()));
        let runners = runners.chain(std::iter::repeat(None));
        let offers = about.offers().into_iter().zip(runners);
        let offers = offers.map(|((slots, capabilities), runner)| {
            last += slots;
            SlotOffer {
                last,
                offer: Offer::new(capabilities),
                runner,
                down: false,
            }
        });
        Offers {
            all: offers.collect(),
            nothing: Offer::new(Capabilities::parse([])),
        }
    }

    fn place(&self, slot: u32) -> usize {
        let last = self.all.len() - 1;
        self.all.partition_point(|it| it.last < slot).min(last)
    }

    /// What this slot offers, counted from 1.
    pub fn of_slot(&self, slot: u32) -> Arc<Offer> {
        let it = &self.all[self.place(slot)];
        if it.down {
            self.nothing.clone()
        } else {
            it.offer.clone()
        }
    }

    /// Takes note of how the pools are; the slots, as (first, last), that offer something else now.
    pub fn pools_are(&mut self, pools: &[RunnerPool]) -> Vec<(u32, u32)> {
        let (mut changed, mut first) = (Vec::new(), 1);
        for it in &mut self.all {
            let pool = pools
                .iter()
                .find(|pool| Some(&pool.name) == it.runner.as_ref());
            // Where nothing is said of it, it is as it was.
            let down = pool.map_or(it.down, |it| it.up == 0 && !it.last_error.is_empty());
            if std::mem::replace(&mut it.down, down) != down {
                changed.push((first, it.last));
            }
            first = it.last + 1;
        }
        changed
    }

    /// How many of these slots belong to each offer, in order.
    pub fn busy(&self, slots: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut busy = vec![0; self.all.len()];
        slots.for_each(|slot| busy[self.place(slot)] += 1);
        busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::capabilities::Group;

    fn group(runner: &str, slots: u32) -> Group {
        Group {
            runner: runner.to_owned(),
            slots,
            ..Group::default()
        }
    }

    #[test]
    fn a_slot_belongs_to_one_offer() {
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

    #[test]
    fn the_slots_of_a_pool_that_does_not_come_up_offer_nothing() {
        let about = About {
            slots: 6,
            groups: vec![group("a", 2), group("b", 3)],
            work: vec!["function".into(), "steps".into()],
            runtimes: vec!["runner:a".into(), "runner:b".into()],
            ..About::default()
        };
        let mut offers = Offers::of(&about);
        let fits = |offers: &Offers, slot, runner: &str| {
            let key: delta_core::Text = format!("runner:{runner} work:function").into();
            offers.of_slot(slot).capabilities.fits(&key)
        };
        let pool = |name: &str, up, last_error: &str| RunnerPool {
            name: name.to_owned(),
            up,
            last_error: last_error.to_owned(),
            ..RunnerPool::default()
        };
        assert_eq!(
            offers.pools_are(&[pool("b", 0, "")]),
            [],
            "it may still come up"
        );
        assert!(fits(&offers, 3, "b"));
        let down = [pool("a", 1, "it ended once"), pool("b", 0, "exit code 3")];
        assert_eq!(offers.pools_are(&down), [(3, 5)]);
        assert!(!fits(&offers, 5, "b"));
        assert!(fits(&offers, 2, "a"));
        assert_eq!(offers.pools_are(&down), [], "nothing new");
        assert_eq!(offers.pools_are(&[]), []);
        assert_eq!(offers.pools_are(&[pool("b", 1, "exit code 3")]), [(3, 5)]);
        assert!(fits(&offers, 3, "b"));
    }
}
