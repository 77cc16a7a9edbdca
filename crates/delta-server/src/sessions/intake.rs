//! Whether a session's agent is to be given work: a machine without I/O.
//!
//! Owns the reasons why it is not: an operator's drain, the agent's own word, a quarantine, a lease
//! that was lost without a word, and a pause after it turned work away or its disk was full.

use std::time::{Duration, Instant};

use delta_core::Text;

/// An agent that turned work away is left alone this long, doubling up to the cap.
const REJECTED_BASE: Duration = Duration::from_secs(1);
const REJECTED_CAP: Duration = Duration::from_secs(60);
/// An agent that turned work away because its disk was full is left alone this long at first:
/// longer than the job waits before its next try, so that another agent gets that.
const FULL_BASE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Intake {
    drain: Option<Text>,
    /// The agent itself wants no work.
    resting: bool,
    quarantined: bool,
    /// It lost a lease without a word, and has said nothing since.
    missing: bool,
    /// How often in a row it turned work away.
    rejections: u32,
    /// Attempts in a row that found its disk full.
    full_disks: u32,
    /// No work before this moment.
    pause: Option<Instant>,
}

/// What to do about the slots that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Ask,
    /// As it is: what was asked for is not taken back.
    Leave,
    /// Take back what was asked for.
    Stop,
}

/// Whether an agent was heard as often as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Lately,
    /// Presence gates what is assigned (EP-49): a program that hangs takes no work.
    Silent,
}

impl Intake {
    pub fn new(drain: Option<Text>, quarantined: bool) -> Intake {
        Intake {
            drain,
            quarantined,
            ..Intake::default()
        }
    }

    pub fn wish(&mut self, heard: Heard, now: Instant) -> Wish {
        if self.pause.is_some_and(|until| now < until) {
            return Wish::Leave;
        }
        self.pause = None;
        if self.drain.is_some() || self.quarantined || self.resting {
            return Wish::Leave;
        }
        if heard == Heard::Silent || self.missing {
            return Wish::Stop;
        }
        Wish::Ask
    }

    pub fn drain(&self) -> Option<&Text> {
        self.drain.as_ref()
    }

    /// An operator drains it. False where this drain is known.
    pub fn begin_drain(&mut self, id: Text) -> bool {
        let is_new = self.drain.as_ref() != Some(&id);
        self.drain = Some(id);
        is_new
    }

    /// False where nobody had drained it.
    pub fn end_drain(&mut self) -> bool {
        self.drain.take().is_some()
    }

    pub fn set_quarantined(&mut self, quarantined: bool) {
        self.quarantined = quarantined;
    }

    /// The agent says whether it wants work. False where that is nothing new.
    pub fn set_resting(&mut self, resting: bool) -> bool {
        std::mem::replace(&mut self.resting, resting) != resting
    }

    /// A lease was lost while nothing was heard. The agent may be stopped or cut off, with many
    /// slots that wait: it gets no more before it says something.
    pub fn went_missing(&mut self) {
        self.missing = true;
    }

    /// The agent said something. True where it may be given work again for that alone.
    pub fn heard(&mut self, before: Heard) -> bool {
        let was_missing = std::mem::take(&mut self.missing);
        let was_away = before == Heard::Silent || was_missing;
        was_away && self.drain.is_none() && self.pause.is_none()
    }

    /// The agent turned work away: others should have it, and this one not at once (A32, F43).
    pub fn rejected(&mut self, now: Instant) {
        self.pause_for(REJECTED_BASE, self.rejections, now);
        self.rejections = self.rejections.saturating_add(1);
    }

    pub fn accepted(&mut self) {
        self.rejections = 0;
    }

    /// An attempt ended for want of room on the agent's disk (F43). That it accepts more work says
    /// nothing of its disk; that it succeeds with some does.
    pub fn disk_was_full(&mut self, now: Instant) {
        self.pause_for(FULL_BASE, self.full_disks, now);
        self.full_disks = self.full_disks.saturating_add(1);
    }

    pub fn disk_has_room(&mut self) {
        self.full_disks = 0;
    }

    fn pause_for(&mut self, base: Duration, times: u32, now: Instant) {
        let pause = base.saturating_mul(1 << times.min(10)).min(REJECTED_CAP);
        let until = now + pause;
        self.pause = Some(self.pause.map_or(until, |other| other.max(until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    // A32, F43
    #[test]
    fn an_agent_that_goes_on_turning_work_away_is_left_alone_for_longer() {
        let (mut intake, mut now) = (Intake::default(), Instant::now());
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            intake.rejected(now);
            assert_eq!(
                intake.wish(Heard::Lately, after(now, pause - 1)),
                Wish::Leave
            );
            now = after(now, pause);
            assert_eq!(intake.wish(Heard::Lately, now), Wish::Ask, "{pause}");
        }
        intake.accepted();
        intake.rejected(now);
        assert_eq!(intake.wish(Heard::Lately, after(now, 1)), Wish::Ask);
    }

    // F43: work that is accepted says nothing of a disk.
    #[test]
    fn a_full_disk_is_over_when_something_succeeds() {
        let (mut intake, mut now) = (Intake::default(), Instant::now());
        for pause in [5, 10, 20] {
            intake.disk_was_full(now);
            intake.accepted();
            assert_eq!(
                intake.wish(Heard::Lately, after(now, pause - 1)),
                Wish::Leave
            );
            now = after(now, pause);
            assert_eq!(intake.wish(Heard::Lately, now), Wish::Ask);
        }
        intake.disk_has_room();
        intake.disk_was_full(now);
        assert_eq!(intake.wish(Heard::Lately, after(now, 5)), Wish::Ask);
    }

    // EP-24, EP-49, A26, A50
    #[test]
    fn each_reason_alone_keeps_work_away_and_its_end_lets_it_in() {
        let now = Instant::now();
        let mut intake = Intake::new(Some("d".into()), false);
        assert_eq!(intake.wish(Heard::Lately, now), Wish::Leave);
        assert!(!intake.begin_drain("d".into()) && intake.begin_drain("e".into()));
        assert!(intake.end_drain() && !intake.end_drain());
        assert_eq!(intake.wish(Heard::Lately, now), Wish::Ask);
        assert!(intake.set_resting(true) && !intake.set_resting(true));
        assert_eq!(intake.wish(Heard::Lately, now), Wish::Leave);
        assert!(intake.set_resting(false));
        intake.set_quarantined(true);
        assert_eq!(intake.wish(Heard::Lately, now), Wish::Leave);
        intake.set_quarantined(false);
        assert_eq!(intake.wish(Heard::Silent, now), Wish::Stop);
        intake.went_missing();
        assert_eq!(intake.wish(Heard::Lately, now), Wish::Stop);
        assert!(intake.heard(Heard::Lately) && !intake.heard(Heard::Lately));
        assert_eq!(intake.wish(Heard::Lately, now), Wish::Ask);
    }
}
