//! Three bounded lanes to one writer (D2): what keeps leases alive goes first, what people ask
//! goes last and is the first to be refused.
//!
//! Owns order and admission. Refuses new work beyond its bounds, lane 3 always before lane 1:
//! overload must not expire live work.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// Which lane a message waits in; earlier lanes are drained first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Heartbeats, completions and acknowledgements.
    Hold,
    /// Lease requests and duties.
    Dispatch,
    /// New runs and whatever else people ask.
    People,
}

/// Waiting heartbeats and completions: a hundred thousand leases on 20 s heartbeats send 5,000 a
/// second, and nothing that waited 5 s is judged, so more than this could not be answered anyway.
pub const HOLD_LIMIT: usize = 25_000;
/// Lane 3 is closed from here on, long before lane 1 itself refuses anybody.
const HOLD_PRESSURE: usize = HOLD_LIMIT / 2;
/// Waiting lease requests and timers: one per slot of a large installation.
pub const DISPATCH_LIMIT: usize = 25_000;
/// Waiting requests of people: a few batches. More waiting is only more delay.
pub const PEOPLE_LIMIT: usize = 1_024;

/// Share of a batch kept for lane 2 and lane 3, so that neither stops altogether while lane 1 is
/// busy.
const DISPATCH_SHARE: usize = 32;
const PEOPLE_SHARE: usize = 16;

/// What lane 3 may bring into one batch, in jobs to create: some ten milliseconds of writing. Runs
/// of a thousand jobs, a batch full of them, would keep every heartbeat waiting for seconds (F58).
const PEOPLE_WEIGHT: usize = 512;

/// The lane is full: come back later.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    Full,
    Closed,
}

pub struct Lanes<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    people_limit: usize,
}

struct State<T> {
    lanes: [VecDeque<T>; 3],
    /// The writer sleeps: a push has to wake it. Waking costs a system call, asked for or not.
    waiting: bool,
    closed: bool,
}

/// How a wait for work ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Drained {
    Work,
    TimedOut,
    /// Closed, and nothing is left.
    Closed,
}

impl<T> Lanes<T> {
    pub fn new(people_limit: usize) -> Lanes<T> {
        Lanes {
            state: Mutex::new(State {
                lanes: std::array::from_fn(|_| VecDeque::new()),
                waiting: false,
                closed: false,
            }),
            arrived: Condvar::new(),
            people_limit,
        }
    }

    pub fn push(&self, lane: Lane, item: T) -> Result<(), Refused> {
        let state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        let waiting = state.lanes[lane as usize].len();
        let pressed = lane == Lane::People && state.lanes[0].len() >= HOLD_PRESSURE;
        if pressed || waiting >= self.limit(lane) {
            return Err(Refused::Full);
        }
        self.add(state, lane, item);
        Ok(())
    }

    /// Takes all of them or none, in their order.
    pub fn push_all(&self, lane: Lane, items: Vec<T>) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.lanes[lane as usize].len() + items.len() > self.limit(lane) {
            return Err(Refused::Full);
        }
        if items.is_empty() {
            return Ok(());
        }
        state.lanes[lane as usize].extend(items);
        self.wake(state);
        Ok(())
    }

    fn limit(&self, lane: Lane) -> usize {
        match lane {
            Lane::Hold => HOLD_LIMIT,
            Lane::Dispatch => DISPATCH_LIMIT,
            Lane::People => self.people_limit,
        }
    }

    /// For what the server itself must do about something it already did: never refused for want
    /// of room, since each one answers a grant that was admitted before.
    pub fn push_own(&self, lane: Lane, item: T) {
        let state = self.lock();
        if !state.closed {
            self.add(state, lane, item);
        }
    }

    fn add(&self, mut state: MutexGuard<'_, State<T>>, lane: Lane, item: T) {
        state.lanes[lane as usize].push_back(item);
        self.wake(state);
    }

    fn wake(&self, mut state: MutexGuard<'_, State<T>>) {
        let wake = std::mem::take(&mut state.waiting);
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
    }

    /// Waits for work until `until`, then takes up to `most` items, earlier lanes first. Of lane 3
    /// it takes no more than its weight allows, and always one.
    pub fn drain(
        &self,
        most: usize,
        until: Option<Instant>,
        weight: fn(&T) -> usize,
        into: &mut Vec<T>,
    ) -> Drained {
        let mut state = self.lock();
        while state.lanes.iter().all(VecDeque::is_empty) {
            if state.closed {
                return Drained::Closed;
            }
            state.waiting = true;
            let Some(until) = until else {
                state = self.arrived.wait(state).unwrap_or_else(|e| e.into_inner());
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.waiting = false;
                return Drained::TimedOut;
            }
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        let mut takes = shares(most, state.lanes.each_ref().map(VecDeque::len));
        takes[2] = light(state.lanes[2].iter().take(takes[2]).map(weight));
        for (lane, take) in takes.into_iter().enumerate() {
            into.extend(state.lanes[lane].drain(..take));
        }
        Drained::Work
    }

    /// No more is taken in; what waits is still handed out.
    pub fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Takes no more and hands back what waits: for a writer that is gone.
    pub fn abandon(&self) -> Vec<T> {
        let mut state = self.lock();
        state.closed = true;
        let left = state.lanes.iter_mut().flat_map(|lane| lane.drain(..));
        left.collect()
    }

    pub fn depths(&self) -> [usize; 3] {
        self.lock().lanes.each_ref().map(VecDeque::len)
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while the lock is held, and a queue has no state to spoil.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// How many to take of each lane.
fn shares(most: usize, waiting: [usize; 3]) -> [usize; 3] {
    let kept_people = waiting[2].min(PEOPLE_SHARE);
    let kept_dispatch = waiting[1].min(DISPATCH_SHARE);
    let hold = waiting[0].min(most - kept_people - kept_dispatch);
    let dispatch = waiting[1].min(most - hold - kept_people);
    [hold, dispatch, waiting[2].min(most - hold - dispatch)]
}

/// How many from the front are not too heavy together; the first always goes.
fn light(weights: impl Iterator<Item = usize>) -> usize {
    let mut sum = 0;
    let within = weights.enumerate().take_while(|(position, weight)| {
        sum += weight;
        *position == 0 || sum <= PEOPLE_WEIGHT
    });
    within.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(lanes: &Lanes<usize>, taken: &mut Vec<usize>) -> Drained {
        lanes.drain(256, None, |_| 1, taken)
    }

    #[test]
    fn heavy_requests_of_people_come_a_few_at_a_time() {
        // F58, D2
        assert_eq!(light([].into_iter()), 0);
        assert_eq!(light([1000, 1].into_iter()), 1);
        assert_eq!(light([100; 50].into_iter()), 5);
        assert_eq!(light([1; 200].into_iter()), 200);
        let lanes = Lanes::new(10);
        for jobs in [400, 400, 400] {
            lanes.push(Lane::People, jobs).unwrap();
        }
        lanes.push(Lane::Hold, 1).unwrap();
        let mut taken = Vec::new();
        lanes.drain(256, None, |jobs| *jobs, &mut taken);
        assert_eq!(taken, [1, 400]);
    }

    #[test]
    fn lanes_are_drained_in_order_and_none_starves() {
        assert_eq!(shares(256, [10, 10, 10]), [10, 10, 10]);
        assert_eq!(shares(256, [1000, 1000, 1000]), [208, 32, 16]);
        assert_eq!(shares(256, [0, 1000, 1000]), [0, 240, 16]);
        assert_eq!(shares(256, [0, 0, 1000]), [0, 0, 256]);
    }

    #[test]
    fn the_peoples_lane_is_refused_before_the_lane_of_heartbeats() {
        // D2
        let lanes = Lanes::new(2);
        for n in 0..HOLD_PRESSURE {
            lanes.push(Lane::Hold, n).unwrap();
        }
        assert_eq!(lanes.push(Lane::People, 0), Err(Refused::Full));
        for n in HOLD_PRESSURE..HOLD_LIMIT {
            lanes.push(Lane::Hold, n).unwrap();
        }
        assert_eq!(lanes.push(Lane::Hold, 0), Err(Refused::Full));
    }

    #[test]
    fn a_full_lane_of_people_does_not_close_the_others() {
        let lanes = Lanes::new(2);
        lanes.push(Lane::People, 1).unwrap();
        lanes.push(Lane::People, 2).unwrap();
        assert_eq!(lanes.push(Lane::People, 3), Err(Refused::Full));
        lanes.push(Lane::Hold, 4).unwrap();
        lanes.push(Lane::Dispatch, 5).unwrap();
        let mut taken = Vec::new();
        assert_eq!(drain(&lanes, &mut taken), Drained::Work);
        assert_eq!(taken, [4, 5, 1, 2]);
    }

    #[test]
    fn a_closed_lane_hands_out_what_it_has_and_takes_no_more() {
        let lanes = Lanes::new(2);
        lanes.push(Lane::Hold, 1).unwrap();
        lanes.close();
        assert_eq!(lanes.push(Lane::Hold, 2), Err(Refused::Closed));
        let mut taken = Vec::new();
        assert_eq!(drain(&lanes, &mut taken), Drained::Work);
        assert_eq!(drain(&lanes, &mut taken), Drained::Closed);
        assert_eq!(taken, [1]);
    }
}
