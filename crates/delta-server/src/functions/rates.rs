//! How many functions came and went by each queue in the last minute, as this server saw it: for
//! people, decided by nobody, and gone with the process.

use std::collections::HashMap;
use std::sync::Mutex;

use delta_core::run::RunEvent;
use delta_core::{Fact, Millis, Text};
use delta_store::Writes;

/// Seconds that are counted.
const WINDOW: usize = 60;
/// Queues that are counted; more than these are not shown.
const MAX_QUEUES: usize = 1000;

#[derive(Debug, Default)]
pub struct Rates(Mutex<HashMap<Text, Ring>>);

/// Of the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub enqueued: u64,
    pub succeeded: u64,
    pub failed: u64,
}

#[derive(Debug)]
struct Ring([(i64, Counts); WINDOW]);

impl Ring {
    /// Whether anything was counted within the last minute.
    fn is_live(&self, now: Millis) -> bool {
        self.0.iter().any(|(second, _)| *second > since(now))
    }

    fn at(&mut self, second: i64) -> &mut Counts {
        let place = &mut self.0[second.rem_euclid(WINDOW as i64) as usize];
        if place.0 != second {
            *place = (second, Counts::default());
        }
        &mut place.1
    }
}

impl Rates {
    /// Counts what a batch made durable.
    pub fn note(&self, writes: &Writes, now: Millis) {
        let runs = &writes.edits.runs;
        if !runs.values().any(|run| run.header.queue.is_some()) {
            return;
        }
        let mut rings = self.0.lock().unwrap_or_else(|e| e.into_inner());
        for record in &writes.records {
            let run = runs.get(&record.run);
            let Some(queue) = run.and_then(|run| run.header.queue.as_ref()) else {
                continue;
            };
            let Some(counts) = counts(&mut rings, queue, now) else {
                continue;
            };
            for fact in &record.facts {
                match fact {
                    Fact::RunCreated(_) => counts.enqueued += 1,
                    Fact::RunMoved { event, .. } => match event {
                        RunEvent::Succeeded => counts.succeeded += 1,
                        RunEvent::Failed | RunEvent::TimedOut => counts.failed += 1,
                        _ => {}
                    },
                    _ => {}
                }
            }
        }
    }

    /// Everything that was counted within the last minute.
    pub fn last_minute(&self, now: Millis) -> HashMap<Text, Counts> {
        let mut rings = self.0.lock().unwrap_or_else(|e| e.into_inner());
        rings.retain(|_, ring| ring.is_live(now));
        let since = since(now);
        let sum = |ring: &Ring| {
            let live = ring.0.iter().filter(|(second, _)| *second > since);
            live.fold(Counts::default(), |sum, (_, it)| Counts {
                enqueued: sum.enqueued + it.enqueued,
                succeeded: sum.succeeded + it.succeeded,
                failed: sum.failed + it.failed,
            })
        };
        rings
            .iter()
            .map(|(name, ring)| (name.clone(), sum(ring)))
            .collect()
    }
}

/// Where what happens now in a queue is counted; nothing when too many others are.
fn counts<'a>(
    rings: &'a mut HashMap<Text, Ring>,
    queue: &Text,
    now: Millis,
) -> Option<&'a mut Counts> {
    if !rings.contains_key(queue) && rings.len() >= MAX_QUEUES {
        // Those of which nothing was heard for long make room.
        rings.retain(|_, ring| ring.is_live(now));
    }
    if !rings.contains_key(queue) && rings.len() >= MAX_QUEUES {
        return None;
    }
    let ring = rings.entry(queue.clone());
    let ring = ring.or_insert_with(|| Ring([(0, Counts::default()); WINDOW]));
    Some(ring.at(now.0 / 1000))
}

/// The second before the first that counts.
fn since(now: Millis) -> i64 {
    now.0 / 1000 - WINDOW as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if a call of this queue had come; whether it was counted.
    fn came(rates: &Rates, queue: &str, now: Millis) -> bool {
        let mut rings = rates.0.lock().unwrap();
        let counts = counts(&mut rings, &queue.into(), now);
        counts.map(|it| it.enqueued += 1).is_some()
    }

    #[test]
    fn queues_of_long_ago_leave_room_for_others() {
        let (rates, now) = (Rates::default(), Millis(1_000_000_000));
        for n in 0..MAX_QUEUES {
            assert!(came(&rates, &format!("q{n}"), now));
        }
        assert!(!came(&rates, "new", now), "as many as are counted");
        let later = now + delta_core::Span::secs(61);
        assert!(came(&rates, "new", later));
        let counted = rates.last_minute(later);
        assert_eq!(counted.len(), 1, "the others are forgotten");
        assert_eq!(counted["new"].enqueued, 1);
    }
}
