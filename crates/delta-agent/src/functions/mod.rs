//! Function jobs: calls of handlers in long-lived runner processes, over the RRQ Runner Protocol v2
//! on the loopback (D6, A46).
//!
//! A call has no workspace, no shim and no log: it is a message to a process that is there already.
//! The agent keeps those processes alive, hands calls to whichever has room, and lets the others
//! wait. What a runner does wrong hurts the call it does it to. It refuses to speak to a listener
//! that is not its own child's, and gives no runner a lease, a credential or its own environment.
//!
//! Calls do not outlive their agent: when it is gone, so are its runners, and the lease of a call
//! that was under way ends by its time to live.
//!
//! Reading order: [`settings`], here, `pool` (who takes a call), `call` (its life), `outcome` (what
//! it came to), `serial_connection` and `pipeline` (the wire), `endpoint`, `port_owner` and
//! `tcp_sockets` (who is at the other end), `supervisor` and `runner_process` (with the guard of
//! `delta-shim` beside each runner); `runner_output`, `slot_shares` (how many slots each pool has),
//! `health`.

mod call;
mod endpoint;
mod health;
mod outcome;
mod pipeline;
mod pool;
mod port_owner;
mod run;
pub mod runner_output;
mod runner_process;
mod serial_connection;
pub mod settings;
mod settings_file;
mod slot_shares;
mod supervisor;
mod tcp_sockets;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use delta_shim::sandbox::{Confinement, Sandbox};
use delta_wire::job_spec::FunctionSpec;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use self::call::{Call, Stop};
use self::call::{NotSent, TRIES, TRY_PAUSE, carry_out, next};
pub use self::health::{PoolHealth, ProcessHealth, ProcessState};
use self::outcome::Why;
pub use self::outcome::{CallEnd, RESULT_TOO_LARGE};
use self::pool::Pool;
pub(crate) use self::run::perform;
use self::runner_process::Launch;
pub use self::settings::{PoolSettings, RunnerSettings, RunnerSettingsError, RunnerSource};
pub use self::slot_shares::share;
use crate::work::{BaseEnvironment, base};

/// What runners are started with.
pub struct Surroundings {
    /// This program: it is also the guard of every runner.
    pub program: PathBuf,
    pub base_environment: BaseEnvironment,
    /// How far they are trusted with this machine. They are the operator's own programs: whatever
    /// the sandbox of jobs, they see what its user sees, but for the agent itself.
    pub sandbox: Sandbox,
    /// The agent's state and credentials, which they are kept from.
    pub secrets: Vec<PathBuf>,
    pub work_folder: PathBuf,
}

/// The runners of an agent. Dropped, it ends all of them.
pub struct Functions {
    pools: Vec<Arc<Pool>>,
    default: Option<String>,
    keepers: Mutex<JoinSet<()>>,
    stop: CancellationToken,
}

impl Functions {
    /// Begins to start every process; calls wait until the first is there.
    pub fn start(settings: RunnerSettings, around: &Surroundings) -> Functions {
        let confinement = match around.sandbox {
            Sandbox::Open => Confinement::OPEN,
            Sandbox::Host | Sandbox::Strict => Confinement::of_host(),
        };
        let mut env = base(&around.base_environment);
        env.extend(std::env::var_os("HOME").map(|home| ("HOME".into(), home)));
        let launch = Arc::new(Launch {
            program: around.program.clone(),
            env: env.into_iter().collect(),
            confinement,
            hidden: confinement.to_hide(&around.secrets, &around.work_folder),
            ports: Mutex::new(BTreeSet::new()),
        });
        let stop = CancellationToken::new();
        let pools: Vec<Arc<Pool>> = settings.pools.into_iter().map(Pool::new).collect();
        let mut keepers = JoinSet::new();
        for pool in &pools {
            for lane in 0..pool.size() {
                let (pool, launch) = (Arc::clone(pool), Arc::clone(&launch));
                keepers.spawn(supervisor::keep(pool, lane, launch, stop.clone()));
            }
        }
        Functions {
            pools,
            default: settings.default,
            keepers: Mutex::new(keepers),
            stop,
        }
    }

    /// Carries out a call, in its turn, unless it is told to stop.
    pub async fn call(&self, call: &Call, mut stop: Stop) -> CallEnd {
        let pool = match self.route(&call.function) {
            Ok(pool) => pool,
            Err(words) => return outcome::no_runner(words),
        };
        // What was ordered before counts.
        stop.mark_changed();
        let mut tries = 0;
        loop {
            tries += 1;
            let place = tokio::select! {
                biased;
                order = next(&mut stop) => {
                    return outcome::stopped(Why::Ordered(order.reason), true);
                }
                place = pool.place() => place,
            };
            let place = match place {
                Ok(place) => place,
                Err(why) => {
                    let words = format!("the runner `{}` is not there: {why}", pool.settings.name);
                    return outcome::broken(words);
                }
            };
            let live = Arc::clone(&place.live);
            match carry_out(call, place, &pool.settings, &mut stop).await {
                Ok(end) => return end,
                Err(NotSent(why)) if tries >= TRIES => return outcome::broken(why),
                Err(NotSent(why)) => {
                    tracing::warn!(runner = pool.settings.name, why, "a call was not sent");
                    pool.shun(&live);
                    let _ = timeout(TRY_PAUSE, live.gone.cancelled()).await;
                }
            }
        }
    }

    /// Whose call it is: the runner it names, or the one of its queue (RQ-45).
    fn route(&self, function: &FunctionSpec) -> Result<&Arc<Pool>, String> {
        // As the server matches them: `PY#echo` and `py#echo` are the same.
        let named = |name: &str| {
            let mut pools = self.pools.iter();
            pools.find(|it| it.settings.name.eq_ignore_ascii_case(name))
        };
        if let Some(runner) = function.parts().0 {
            return named(runner).ok_or_else(|| format!("no runner `{runner}` here"));
        }
        let serves = |pool: &&Arc<Pool>| pool.settings.queues.contains(&function.queue);
        let served = self.pools.iter().find(serves);
        let queue = &function.queue;
        let words = || format!("it names no runner, and none here serves the queue `{queue}`");
        served
            .or_else(|| self.default.as_deref().and_then(named))
            .ok_or_else(words)
    }

    /// The name of the pool that takes it.
    pub(crate) fn runner(&self, function: &FunctionSpec) -> Option<&str> {
        let pool = self.route(function).ok()?;
        Some(&pool.settings.name)
    }

    pub fn health(&self) -> Vec<PoolHealth> {
        self.pools.iter().map(|pool| pool.health()).collect()
    }

    /// Ends all runners: TERM, and KILL after the grace of their pool.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        let keepers = self.keepers.lock();
        let mut keepers = std::mem::take(&mut *keepers.unwrap_or_else(PoisonError::into_inner));
        while keepers.join_next().await.is_some() {}
    }
}
