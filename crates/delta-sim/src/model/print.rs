//! The print of a world: everything its future depends on, and nothing else. Moments count only as
//! the time left until them, so that the same situation an hour later is the same state.

use delta_core::{Attempt, Lease, Millis, Run, Span, World};

use crate::check::Memory;
use crate::check::memory::Message;

/// Two 64-bit lanes of multiply and rotate.
#[derive(Clone, Copy)]
pub struct Print(u64, u64);

impl Default for Print {
    fn default() -> Print {
        Print(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344)
    }
}

impl Print {
    pub fn word(&mut self, n: u64) {
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        self.1 = (self.1.rotate_left(23) ^ n).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ (n << 7);
    }

    pub fn small(&mut self, n: impl Into<i64>) {
        self.word(n.into() as u64);
    }

    /// Any plain enum, by its debug-free discriminant order.
    pub fn tag<T: std::hash::Hash>(&mut self, value: &T) {
        struct Words<'a>(&'a mut Print);
        impl std::hash::Hasher for Words<'_> {
            fn finish(&self) -> u64 {
                0
            }
            fn write(&mut self, bytes: &[u8]) {
                for chunk in bytes.chunks(8) {
                    let mut word = [0; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    self.0.word(u64::from_le_bytes(word));
                }
            }
        }
        value.hash(&mut Words(self));
    }

    pub fn finish(mut self) -> u128 {
        for salt in [0x5851_f42d_4c95_7f2d, 0x1405_7b7e_f767_814f] {
            self.word(salt);
            self.0 ^= self.1 >> 31;
            self.1 ^= self.0 >> 33;
        }
        u128::from(self.0) << 64 | u128::from(self.1)
    }

    /// Time left, never less than nothing.
    pub fn left(&mut self, at: Option<Millis>, now: Millis) {
        self.small(at.map_or(-1, |at| at.since(now).0));
    }
}

/// How to name the holder of a lease, so that agents may be swapped.
pub type Who<'a> = &'a dyn Fn(&Lease) -> u64;

/// How far a run's deadline may lie in the past and still matter: longer than any forced end.
const PAST: i64 = 2_000;

/// The models' jobs end this long after their acknowledgement at the latest.
const LONGEST_JOB: Span = Span::secs(2);

pub fn world(print: &mut Print, world: &World, now: Millis, who: Who) {
    for found in world.runs.values().flatten() {
        run(print, found, now);
    }
    for job in world.jobs.values().flatten() {
        print.small(job.attempts);
        print.small(job.waiting_on);
        print.tag(&job.resolution);
    }
    for found in world.attempts.values().flatten() {
        attempt(print, found, now, who);
    }
    // A superseded lease has no future but to be refused; only a live one would matter.
    for (key, found) in &world.past_leases {
        if found.as_ref().is_some_and(|lease| lease.state.is_live()) {
            print.word(key.epoch);
        }
    }
}

fn run(print: &mut Print, run: &Run, now: Millis) {
    print.tag(&(run.state, run.outcome, run.cause));
    print.tag(&run.cancel.as_ref().map(|cancel| cancel.cause));
    print.left(run.due_at(), now);
    let until = run.deadline().map(|at| (at.0 - now.0).max(-PAST));
    let over = run.outcome.is_some();
    print.small(if over { 0 } else { until.unwrap_or(i64::MIN) });
    print.small(run.live_jobs);
    print.small(run.required_failed);
    print.small(run.required_canceled);
}

fn attempt(print: &mut Print, attempt: &Attempt, now: Millis, who: Who) {
    print.small(attempt.id.job.n);
    print.small(attempt.id.index);
    print.tag(&(attempt.state, attempt.cause));
    if attempt.state == delta_core::AttemptState::Created {
        print.left(Some(attempt.not_before), now);
    }
    print.small(attempt.losses);
    print.small(attempt.dispatches);
    print.small(attempt.lease_number);
    if !attempt.state.is_final() {
        print.left(attempt.cancel.as_ref().map(|cancel| cancel.force_at), now);
        print.left(attempt.cancel_deadline(), now);
        print.small(i64::from(attempt.cancel_told_at.is_some()));
    }
    let Some(lease) = &attempt.lease else {
        return;
    };
    print.word(lease.epoch);
    print.word(who(lease));
    print.tag(&(lease.state, lease.closing, lease.heartbeat_seq));
    if lease.state.is_live() {
        if lease.state == delta_core::LeaseState::Granted {
            print.left(Some(lease.ack_by), now);
        }
        print.left(Some(lease.expires_at), now);
        print.left(lease.acknowledged_at.map(|at| at + LONGEST_JOB), now);
    }
}

/// What the checkers remember, rows do not show, and a later answer is compared with: the time
/// that acknowledging a live lease gave.
pub fn memory(print: &mut Print, memory: &Memory, world: &World) {
    for attempt in world.attempts.values().flatten() {
        if let Some(lease) = attempt.live_lease() {
            let ack = Message::Ack(attempt.id.lease(lease.epoch));
            print.tag(&memory.accepted.get(&ack));
        }
    }
}
