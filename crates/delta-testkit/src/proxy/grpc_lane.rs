//! What happens to the messages of one direction of one gRPC call: lost, doubled, overtaken, cut.
//!
//! Pure: messages and the time come in, messages to deliver come out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;

use super::journal::Journal;
use super::lane::Direction;
use crate::rng::Rng;

/// A message that was overtaken waits for at most so many others, and for no longer than this, so
/// that the last one arrives too.
const MOST_BEHIND: u64 = 3;
const LONGEST_WAIT: Duration = Duration::from_millis(150);

/// How likely each message is to meet with a fault; the draws are independent of each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrpcChances {
    /// It is lost.
    pub drop: f64,
    /// It comes twice.
    pub duplicate: f64,
    /// Later ones come before it; each of two copies by itself.
    pub reorder: f64,
    /// It and all that follow in its direction are lost; their reader sees an orderly end, and the
    /// other direction goes on.
    pub half_close: f64,
}

impl GrpcChances {
    pub fn none() -> GrpcChances {
        GrpcChances {
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            half_close: 0.0,
        }
    }
}

/// One direction of one call.
pub(super) struct GrpcLane {
    pub(super) call: u64,
    pub(super) direction: Direction,
    pub(super) rng: Rng,
    pub(super) chances: GrpcChances,
    pub(super) journal: Arc<Journal>,
    /// Messages so far.
    count: u64,
    held: Vec<Held>,
    closed: bool,
}

struct Held {
    message: Bytes,
    /// Messages that still pass before it.
    behind: u64,
    until: Instant,
}

impl GrpcLane {
    pub(super) fn new(
        call: u64,
        direction: Direction,
        rng: Rng,
        chances: GrpcChances,
        journal: Arc<Journal>,
    ) -> GrpcLane {
        GrpcLane {
            call,
            direction,
            rng,
            chances,
            journal,
            count: 0,
            held: Vec::new(),
            closed: false,
        }
    }

    /// Takes the next message. What is to be delivered now is returned, in order.
    ///
    /// The first message of a direction opens the call and meets with no fault: to lose it is to
    /// lose the call, which is what a half-close does.
    pub(super) fn take(&mut self, message: Bytes, now: Instant) -> Vec<Bytes> {
        self.count += 1;
        if self.closed {
            return Vec::new();
        }
        if self.count == 1 {
            return vec![message];
        }
        if self.meets(self.chances.half_close, "half-close") {
            self.closed = true;
            self.held.clear();
            return Vec::new();
        }
        for held in &mut self.held {
            held.behind = held.behind.saturating_sub(1);
        }
        let mut passing = Vec::new();
        if !self.meets(self.chances.drop, "drop") {
            let twice = self.meets(self.chances.duplicate, "duplicate");
            for _ in 0..=u32::from(twice) {
                if self.meets(self.chances.reorder, "reorder") {
                    let behind = self.rng.between(1..MOST_BEHIND + 1);
                    self.held.push(Held {
                        message: message.clone(),
                        behind,
                        until: now + self.rng.duration(Duration::ZERO..LONGEST_WAIT),
                    });
                } else {
                    passing.push(message.clone());
                }
            }
        }
        passing.extend(self.due(now));
        passing
    }

    /// Those that were overtaken for long enough.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Bytes> {
        let due = |held: &mut Held| held.behind == 0 || held.until <= now;
        self.held
            .extract_if(.., due)
            .map(|held| held.message)
            .collect()
    }

    /// When there is something to deliver without another message.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.until).min()
    }

    /// The sender is done: what was held back comes now.
    pub(super) fn rest(&mut self) -> Vec<Bytes> {
        self.held.drain(..).map(|held| held.message).collect()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    fn meets(&mut self, chance: f64, fault: &'static str) -> bool {
        let met = self.rng.chance(chance);
        if met {
            let (call, count, direction) = (self.call, self.count, self.direction);
            let detail = format!("call {call}, {direction:?}, message {count}");
            self.journal.note(fault, detail);
        }
        met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carry(chances: GrpcChances, count: u32) -> (Vec<u32>, Arc<Journal>) {
        let journal = Arc::new(Journal::new(7));
        let (rng, direction) = (Rng::new(7), Direction::ToServer);
        let mut lane = GrpcLane::new(1, direction, rng, chances, journal.clone());
        let now = Instant::now();
        let mut came = Vec::new();
        for number in 0..count {
            let message = Bytes::copy_from_slice(&number.to_be_bytes());
            came.extend(lane.take(message, now));
        }
        came.extend(lane.rest());
        let number = |bytes: Bytes| u32::from_be_bytes(bytes.as_ref().try_into().unwrap());
        (came.into_iter().map(number).collect(), journal)
    }

    #[test]
    fn without_faults_everything_passes_in_order() {
        let (came, journal) = carry(GrpcChances::none(), 1000);
        assert!(came.into_iter().eq(0..1000));
        assert!(journal.lines().is_empty());
    }

    #[test]
    fn messages_are_lost_doubled_and_overtaken_as_often_as_asked_for() {
        let chances = GrpcChances {
            drop: 0.3,
            duplicate: 0.3,
            reorder: 0.3,
            half_close: 0.0,
        };
        let (came, journal) = carry(chances, 1000);
        let [lost, twice] = ["drop", "duplicate"].map(|kind| journal.count(kind));
        assert!((200..400).contains(&lost) && (140..280).contains(&twice));
        assert_eq!(came.len() as u64, 1000 - lost + twice);
        assert!(!came.is_sorted() && came[0] == 0);
        let far = |(at, number): (usize, &u32)| came[..at].iter().all(|it| *it <= number + 4);
        assert!(came.iter().enumerate().all(far), "not far overtaken");
    }

    #[test]
    fn nothing_follows_a_half_close() {
        let chances = GrpcChances {
            half_close: 0.01,
            ..GrpcChances::none()
        };
        let (came, journal) = carry(chances, 1000);
        assert!(came.len() < 1000 && came.is_sorted());
        assert_eq!(journal.count("half-close"), 1);
    }
}
