//! One pool: who of its processes takes the next call. Calls that find no room wait in the order
//! they came, here in the agent: no runner is given more than it takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use delta_runner_protocol::Outcome;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::endpoint::RunnerEndpoint;
use super::health::{PoolHealth, ProcessHealth, ProcessState};
use super::pipeline::Pipeline;
use super::serial_connection::{Ids, Lines, RunnerCallError, Unknown};
use super::settings::{PoolSettings, RunnerSource};

/// How long a call waits while not one process of its pool is there. Long enough for a process that
/// crashed to come back; after it, another agent may be better off.
const DOWN_PATIENCE: Duration = Duration::from_secs(30);

/// A runner that takes calls.
pub(super) struct Live {
    pub door: RunnerEndpoint,
    lines: Lines,
    pipeline: Option<Pipeline>,
    /// A call of it does not heed its cancel: it must be ended.
    pub condemned: CancellationToken,
    /// It lets nobody in, or is about to end.
    pub shunned: CancellationToken,
    /// Nothing of it is left.
    pub gone: CancellationToken,
    /// Its calls, but for those that did not heed their cancel.
    calls: TaskTracker,
    /// How often it has answered.
    answers: AtomicU64,
    /// A process of ours, which can be ended.
    pub ours: bool,
}

impl Live {
    pub async fn exchange(&self, frame: &[u8], ids: &Ids) -> Result<Outcome, RunnerCallError> {
        let answer = match &self.pipeline {
            Some(pipeline) => pipeline.exchange(&self.door, frame, ids).await,
            None => self.lines.exchange(&self.door, frame, ids).await,
        };
        if answer.is_ok() {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    /// It gets no more calls: what it has not begun is better off elsewhere.
    pub fn is_leaving(&self) -> bool {
        self.condemned.is_cancelled() || self.shunned.is_cancelled()
    }

    /// Waits until it has answered nobody for this long, and for twice as long at most.
    pub async fn quiet(&self, span: Duration) {
        loop {
            let before = self.answers.load(Ordering::Relaxed);
            tokio::time::sleep(span).await;
            if self.answers.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }

    /// Waits for the end of the calls in it that may still end by themselves. For one that gets no
    /// more.
    pub async fn emptied(&self) {
        self.calls.close();
        self.calls.wait().await;
    }
}

pub(super) struct Pool {
    pub settings: PoolSettings,
    state: Mutex<State>,
    unknown: Unknown,
    /// Between two looks at a pool of which nothing is there.
    patience: Duration,
}

struct State {
    lanes: Vec<Lane>,
    waiting: VecDeque<oneshot::Sender<CallSlot>>,
}

/// One process, or its absence.
struct Lane {
    live: Option<Arc<Live>>,
    in_use: u32,
    health: ProcessHealth,
}

/// Room for one call, until it is dropped.
pub(super) struct CallSlot {
    pool: Arc<Pool>,
    lane: usize,
    pub live: Arc<Live>,
    /// Gone when nobody waits for the end of its call any more.
    under_way: Option<TaskTrackerToken>,
}

impl CallSlot {
    /// Its call does not heed its cancel: the process must be ended, once the others in it are
    /// over. They have done nothing wrong.
    pub fn condemn(&mut self) {
        self.under_way = None;
        self.pool.leave(&self.live);
        self.live.condemned.cancel();
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        let lane = &mut state.lanes[self.lane];
        if lane.is(&self.live) {
            lane.in_use -= 1;
        }
        let left_over = self.pool.hand_out(&mut state);
        drop(state);
        drop(left_over);
    }
}

impl Lane {
    fn is(&self, live: &Arc<Live>) -> bool {
        self.live.as_ref().is_some_and(|it| Arc::ptr_eq(it, live))
    }
}

impl Pool {
    pub fn new(settings: PoolSettings) -> Arc<Pool> {
        let lane = |_| Lane {
            live: None,
            in_use: 0,
            health: ProcessHealth::default(),
        };
        let patience = DOWN_PATIENCE.min(settings.start_timeout);
        let state = State {
            lanes: (0..settings.size()).map(lane).collect(),
            waiting: VecDeque::new(),
        };
        Arc::new(Pool {
            settings,
            patience,
            unknown: Unknown::default(),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn size(&self) -> usize {
        self.state().lanes.len()
    }

    /// Room for a call, as soon as there is some. An error says why there will be none.
    pub async fn place(self: &Arc<Self>) -> Result<CallSlot, String> {
        let (give, mut given) = oneshot::channel();
        let left_over = {
            let mut state = self.state();
            // Those that were told to stop meanwhile would stay until room came for them.
            state.waiting.retain(|it| !it.is_closed());
            state.waiting.push_back(give);
            self.hand_out(&mut state)
        };
        drop(left_over);
        loop {
            match tokio::time::timeout(self.patience, &mut given).await {
                Ok(Ok(place)) => return Ok(place),
                Ok(Err(_)) => return Err("the agent is ending".to_owned()),
                Err(_) => {
                    if let Some(why) = self.down() {
                        return Err(why);
                    }
                }
            }
        }
    }

    /// Why not one process is there, when none is.
    fn down(&self) -> Option<String> {
        let state = self.state();
        if state.lanes.iter().any(|lane| lane.live.is_some()) {
            return None;
        }
        let why = state
            .lanes
            .iter()
            .find_map(|it| it.health.last_error.clone());
        Some(why.unwrap_or_else(|| "it has not begun to listen".to_owned()))
    }

    /// Gives room to those who wait for it. What nobody took must be dropped without the lock.
    fn hand_out(self: &Arc<Self>, state: &mut State) -> Option<CallSlot> {
        let mut spare: Option<CallSlot> = None;
        while !state.waiting.is_empty() {
            let place = match spare.take() {
                Some(place) => place,
                None => self.free(state)?,
            };
            let Some(waiter) = state.waiting.pop_front() else {
                return Some(place);
            };
            // Whoever does not wait any more leaves it to the next.
            spare = waiter.send(place).err();
        }
        spare
    }

    /// A place in the process with the fewest calls.
    fn free(self: &Arc<Self>, state: &mut State) -> Option<CallSlot> {
        let most = self.settings.in_flight;
        let lanes = state.lanes.iter_mut().enumerate();
        let (index, lane) = lanes
            .filter(|(_, lane)| lane.live.is_some() && lane.in_use < most)
            .min_by_key(|(_, lane)| lane.in_use)?;
        let live = Arc::clone(lane.live.as_ref()?);
        lane.in_use += 1;
        Some(CallSlot {
            pool: Arc::clone(self),
            lane: index,
            under_way: Some(live.calls.token()),
            live,
        })
    }

    /// A process of this lane takes calls from now on.
    pub fn ready(self: &Arc<Self>, lane: usize, door: RunnerEndpoint) -> Arc<Live> {
        let (address, pid) = (door.address, door.owner.as_ref().map(|it| it.pid));
        let unknown = &self.unknown;
        let live = Arc::new(Live {
            door,
            lines: Lines::new(unknown),
            pipeline: self.settings.pipeline.then(|| Pipeline::new(unknown)),
            condemned: CancellationToken::new(),
            shunned: CancellationToken::new(),
            gone: CancellationToken::new(),
            calls: TaskTracker::new(),
            answers: AtomicU64::new(0),
            ours: matches!(self.settings.source, RunnerSource::Command { .. }),
        });
        let left_over = {
            let mut state = self.state();
            let it = &mut state.lanes[lane];
            (it.live, it.in_use) = (Some(Arc::clone(&live)), 0);
            it.health.state = ProcessState::Ready;
            (it.health.pid, it.health.address) = (pid, Some(address));
            self.hand_out(&mut state)
        };
        drop(left_over);
        tracing::info!(runner = self.settings.name, %address, ?pid, "a runner is ready");
        live
    }

    /// It takes none any more; those under way are told when nothing of it is left.
    pub fn retire(&self, lane: usize) {
        let mut state = self.state();
        let it = &mut state.lanes[lane];
        (it.live, it.in_use) = (None, 0);
        it.health.state = ProcessState::Stopping;
    }

    /// It let a call down that it saw nothing of: it lets nobody in, or is about to end. Nobody
    /// else is sent there, and what is under way in it has its time.
    pub fn shun(&self, live: &Arc<Live>) {
        self.leave(live);
        live.shunned.cancel();
    }

    /// It is given no more calls.
    fn leave(&self, live: &Arc<Live>) {
        let mut state = self.state();
        if let Some(lane) = state.lanes.iter_mut().find(|lane| lane.is(live)) {
            (lane.live, lane.in_use) = (None, 0);
            lane.health.state = ProcessState::Stopping;
        }
    }

    pub fn starting(&self, lane: usize) {
        let health = &mut self.state().lanes[lane].health;
        health.state = ProcessState::Starting;
        health.starts += 1;
    }

    pub fn backing_off(&self, lane: usize, why: &str, pause: Duration) {
        let runner = &self.settings.name;
        tracing::warn!(runner, why, ?pause, "a runner is not there");
        let health = &mut self.state().lanes[lane].health;
        health.state = ProcessState::BackingOff;
        (health.pid, health.address) = (None, None);
        health.last_error = Some(why.to_owned());
    }

    pub fn health(&self) -> PoolHealth {
        let state = self.state();
        let processes = state.lanes.iter().map(|lane| ProcessHealth {
            in_flight: lane.in_use,
            ..lane.health.clone()
        });
        PoolHealth {
            name: self.settings.name.clone(),
            room: self.settings.room(),
            processes: processes.collect(),
            waiting: state.waiting.iter().filter(|it| !it.is_closed()).count(),
            unknown: self.unknown.count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::settings::RunnerSettings;
    use super::*;

    #[tokio::test]
    async fn who_gave_up_does_not_stay_among_those_that_wait() {
        let file = "pools: {h: {address: '127.0.0.1:9'}}";
        let mut settings =
            RunnerSettings::parse("runners.yaml", file, Path::new("/")).expect("pools");
        let pool = Pool::new(settings.pools.remove(0));
        for _ in 0..20 {
            let waiting = tokio::time::timeout(Duration::from_millis(1), pool.place());
            assert!(waiting.await.is_err(), "nothing is there");
        }
        assert!(pool.state().waiting.len() <= 1);
    }
}
