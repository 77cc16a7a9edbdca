//! Why work is told to stop, and which of two reasons counts.

use serde::{Deserialize, Serialize};

/// Why a running attempt is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The server asked for it.
    Canceled,
    /// The job ran as long as it may.
    TimedOut,
    /// A step ran as long as it may.
    StepTimedOut,
    /// Nothing was printed for as long as that may last.
    Silent,
    /// The lease is gone: nobody waits for the result.
    LeaseLost,
    /// This agent is going away.
    Shutdown,
}

impl StopReason {
    /// Which of two counts, whichever came first: who has lost its lease has nobody to report to; a
    /// person's word comes before a clock's, and that before this agent's going away, which would
    /// have the work done again. Of two clocks, the one that ran out first.
    pub(crate) fn rank(self) -> u8 {
        match self {
            StopReason::LeaseLost => 3,
            StopReason::Canceled => 2,
            StopReason::TimedOut | StopReason::StepTimedOut | StopReason::Silent => 1,
            StopReason::Shutdown => 0,
        }
    }
}

/// An order to stop, as the shim keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopAt {
    pub reason: StopReason,
    pub kill_at: i64,
}

impl StopAt {
    /// The reason with the higher rank counts, the earlier of two that are equal; the moment of
    /// KILL never moves back.
    pub(crate) fn stricter(old: Option<StopAt>, new: StopAt) -> StopAt {
        let Some(old) = old else { return new };
        let reason = if new.reason.rank() > old.reason.rank() {
            new.reason
        } else {
            old.reason
        };
        let kill_at = old.kill_at.min(new.kill_at);
        StopAt { reason, kill_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_with_the_higher_rank_counts_whichever_came_first() {
        use StopReason::{Canceled, LeaseLost, Shutdown, Silent, StepTimedOut, TimedOut};
        let order = |reason, kill_at| StopAt { reason, kill_at };
        for (higher, lower) in [
            (LeaseLost, Canceled),
            (LeaseLost, Shutdown),
            (Canceled, TimedOut),
            (Canceled, StepTimedOut),
            (Canceled, Silent),
            (Canceled, Shutdown),
            (TimedOut, Shutdown),
            (StepTimedOut, Shutdown),
            (Silent, Shutdown),
        ] {
            for (first, second) in [(higher, lower), (lower, higher)] {
                let both = StopAt::stricter(Some(order(first, 10)), order(second, 90));
                assert_eq!(both, order(higher, 10), "the kill is never moved back");
            }
        }
        // What is stopped for one clock is not told of another that ran out meanwhile.
        let both = StopAt::stricter(Some(order(StepTimedOut, 90)), order(TimedOut, 10));
        assert_eq!(both, order(StepTimedOut, 10));
    }
}
