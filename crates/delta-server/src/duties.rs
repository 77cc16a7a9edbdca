//! What the server does by itself. Every duty has one silhouette: what it needs, `run` (the loop),
//! `run_once` (one pass, returns counts), and nothing that decides: the core does.
//!
//! Duties go through the writer like everybody else, in lane 2, with stamps of their own (A38).

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use delta_core::{Command, Millis, Reply, RunId, Span};
use delta_store::read::Reader;
use delta_store::{Due, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::caches::CacheLimits;
use crate::clock::DIVERGENCE;
use crate::http::App;
use crate::objects::{DEAD_PART, Objects};
use crate::writer::{NotDone, Writer};

/// Due things looked for at first, and sent to the writer at once: four batches.
const SWEEP_LIMIT: usize = 1_000;
/// Runs deleted in one go: a batch of deletions must not hold up heartbeats.
const PRUNE_LIMIT: usize = 100;
/// How often old runs are looked for.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// When to look again after a pass that failed: whatever was in the way is usually gone by then.
const PRUNE_AGAIN: Duration = Duration::from_secs(1);
/// How often left-over files are looked for: they harm nobody, and looking reads a whole folder.
const TIDY_EVERY: Duration = Duration::from_secs(3600);
/// Agents that were not seen for this long are forgotten: machines that come and go would fill the
/// list of those that stay.
const AGENT_KEPT: Span = Span::hours(24 * 30);
/// How often servers beside others look at what is set about queues: a pause is asked for by
/// people, who see within seconds that it counts everywhere.
const READ_QUEUES_EVERY: Duration = Duration::from_secs(2);
/// Runs asked about in one read.
const TIDY_LIMIT: usize = 500;

/// Expire, time out, force cancels, publish retries, and look for work for parked slots.
pub struct Sweep {
    pub writer: Writer,
    pub every: Span,
}

/// What one sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub looked_at: usize,
    pub changed: usize,
}

impl Sweep {
    pub async fn run(self, stop: CancellationToken) {
        let mut tick = ticks(Duration::from_millis(self.every.0.unsigned_abs()));
        let mut troubled = false;
        let turns = &self.writer.shared().turns;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                // Somebody of a group is over, or has come: nobody waits for the next tick.
                () = turns.notified() => {}
                () = stop.cancelled() => return,
            }
            troubled = self.watch_clock(troubled);
            match self.run_once().await {
                Ok(swept) if swept.changed > 0 => {
                    tracing::debug!(swept.looked_at, swept.changed, "swept");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a sweep failed; the next one looks again"),
            }
        }
    }

    /// Says once when the clocks begin to disagree (A23), and once when they agree again.
    fn watch_clock(&self, troubled: bool) -> bool {
        let trouble = self.writer.shared().clock.trouble();
        match &trouble {
            Some(why) if !troubled => tracing::error!(why, "the clocks disagree"),
            None if troubled => tracing::info!("the clocks agree again"),
            _ => {}
        }
        trouble.is_some()
    }

    pub async fn run_once(&self) -> Result<Swept, NotDone> {
        let shared = self.writer.shared();
        self.look_for_others().await?;
        // By a wrong clock nothing is due or not due; the wake-up looks at the store's (A23).
        let swept = match shared.unfit() {
            Some(_) => Swept::default(),
            None => self.settle_due(SWEEP_LIMIT).await?,
        };
        if shared.several_writers {
            shared.watchers.wake_all();
        }
        self.writer.wake();
        Ok(swept)
    }

    /// After the store's clock jumped: whether another server already writes by the new one (A23).
    async fn look_for_others(&self) -> Result<(), NotDone> {
        let shared = self.writer.shared();
        if shared.unready().is_none() {
            shared.behind.store(false, Ordering::Release);
            return Ok(());
        }
        let newest = self.writer.with_store(|store| store.newest_moment());
        let ahead = newest.await?.0 - self.writer.now().0;
        let behind = ahead > DIVERGENCE.0;
        shared.behind.store(behind, Ordering::Release);
        Ok(())
    }

    /// Settles everything that is due, page by page. What is due by the store's reckoning and not
    /// by the core's, such as leases within the start-up grace, stays due: it is paged past.
    pub async fn settle_due(&self, at_once: usize) -> Result<Swept, NotDone> {
        let mut swept = Swept::default();
        let mut seen: BTreeSet<Due> = BTreeSet::new();
        loop {
            let at = self.writer.horizon();
            let stays = swept.looked_at - swept.changed;
            let limit = at_once + 2 * stays;
            let page = self.writer.with_store(move |store| store.due(at, limit));
            let page = page.await?;
            let full = page.len() == limit;
            let fresh: Vec<Due> = page.into_iter().filter(|due| seen.insert(*due)).collect();
            for some in fresh.chunks(at_once) {
                let commands = some.iter().map(command);
                swept.changed += settle(&self.writer, at, commands).await?;
            }
            swept.looked_at += fresh.len();
            if !full || fresh.is_empty() {
                return Ok(swept);
            }
        }
    }
}

/// The question to ask about something that may be due.
fn command(due: &Due) -> Command {
    match due {
        Due::Attempt(attempt) => Command::AttemptDue { attempt: *attempt },
        Due::Run(run) => Command::RunDue { run: *run },
        Due::Turn(member) => Command::TakeTurn { member: *member },
    }
}

/// Sends commands together and counts those that changed something.
async fn settle(
    writer: &Writer,
    at: Millis,
    commands: impl Iterator<Item = Command>,
) -> Result<usize, NotDone> {
    let sent: Vec<_> = commands
        .map(|command| writer.send_duty(at, command))
        .collect();
    let mut changed = 0;
    for sent in sent {
        let answer = sent?.answer().await;
        match answer {
            Ok(answer) => {
                changed += usize::from(answer.reply == Reply::Done { changed: true });
            }
            Err(NotDone::Refused(refusal)) => tracing::debug!(%refusal, "a duty was refused"),
            Err(other) => return Err(other),
        }
    }
    Ok(changed)
}

/// Leases looked at in one go after a start: a few batches, so that however many there are, none
/// waits long enough to be refused.
const CLAMPED_AT_ONCE: usize = 1_000;

/// After a start no lease outlives now + ttl, in case the clock went back (F41).
pub async fn clamp_leases(writer: &Writer) -> Result<usize, NotDone> {
    let leased = writer.with_store(|store| store.leased()).await?;
    let mut changed = 0;
    for some in leased.chunks(CLAMPED_AT_ONCE) {
        let clamps = some
            .iter()
            .map(|attempt| Command::Clamp { attempt: *attempt });
        changed += settle(writer, writer.horizon(), clamps).await?;
    }
    Ok(changed)
}

/// Delete runs that ended long ago, with their logs and artifacts, and those that were to be kept
/// for a shorter time.
pub struct Retention {
    pub writer: Writer,
    /// For good when absent.
    pub keep: Option<Span>,
    pub objects: Arc<Objects>,
}

impl Retention {
    pub async fn run(self, stop: CancellationToken) {
        let mut pause = Duration::ZERO;
        while slept(pause, &stop).await {
            pause = match self.run_once().await {
                Ok(deleted) => {
                    if deleted > 0 {
                        tracing::info!(deleted, "old runs were deleted");
                    }
                    PRUNE_EVERY
                }
                Err(error) => {
                    tracing::warn!(%error, "old runs could not be deleted");
                    PRUNE_AGAIN
                }
            };
        }
    }

    pub async fn run_once(&self) -> Result<usize, NotDone> {
        let now = self.writer.now();
        let kept = self.delete(move |store| store.prune_kept(now, PRUNE_LIMIT));
        let mut deleted = kept.await?;
        if let Some(keep) = self.keep {
            let before = now - keep;
            let old = self.delete(move |store| store.prune(before, PRUNE_LIMIT));
            deleted += old.await?;
        }
        Ok(deleted)
    }

    /// Again and again until there is nothing left to delete.
    async fn delete(
        &self,
        prune: impl Fn(&mut dyn Store) -> Result<Vec<RunId>, StoreError> + Copy + Send + 'static,
    ) -> Result<usize, NotDone> {
        let mut deleted = 0;
        loop {
            let runs = self.writer.with_store(prune).await?;
            deleted += runs.len();
            let (objects, gone) = (self.objects.clone(), runs.len());
            off_the_async_threads(move || Ok(delete_all(&objects, &runs))).await;
            if gone < PRUNE_LIMIT {
                return Ok(deleted);
            }
        }
    }
}

/// See what others have set about queues.
pub struct ReadQueues(pub App);

impl ReadQueues {
    pub async fn run(self, stop: CancellationToken) {
        let mut tick = ticks(READ_QUEUES_EVERY);
        while ticked(&mut tick, &stop).await {
            let app = self.0.clone();
            let read = move |reader: &dyn Reader| app.queues.read(reader, &app.writer);
            if let Err(error) = self.0.read(read).await {
                tracing::warn!(error = error.body.message, "the queues could not be read");
            }
        }
    }
}

/// Delete files that a server which died left behind: parts nobody sends any more, and what
/// belongs to runs that were deleted, by this server or by another on the same store.
pub struct Tidy {
    pub writer: Writer,
    pub reader: Arc<dyn Reader>,
    pub objects: Arc<Objects>,
    pub caches: CacheLimits,
}

impl Tidy {
    pub async fn run(self, stop: CancellationToken) {
        let mut pause = Duration::ZERO;
        while slept(pause, &stop).await {
            let (parts, runs) = self.run_once().await;
            if parts + runs > 0 {
                tracing::info!(parts, runs, "left-over files were deleted");
            }
            self.evict_caches().await;
            // Not right after a start: those who waited for it come back first.
            if !pause.is_zero() {
                self.forget_agents().await;
            }
            pause = TIDY_EVERY;
        }
    }

    async fn evict_caches(&self) {
        let (objects, limits) = (self.objects.clone(), self.caches);
        let evict = move || objects.caches().evict(limits, SystemTime::now());
        let evicted = off_the_async_threads(evict).await;
        if let Some((caches, bytes)) = evicted.filter(|(caches, _)| *caches > 0) {
            let metrics = &self.writer.shared().metrics;
            metrics.caches_evicted.inc_by(caches as u64);
            tracing::info!(caches, bytes, "caches were evicted");
        }
    }

    /// An agent that comes back later registers anew.
    async fn forget_agents(&self) {
        let (reader, before) = (self.reader.clone(), self.writer.now() - AGENT_KEPT);
        let forgotten = tokio::task::spawn_blocking(move || reader.forget_agents(before));
        match forgotten.await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(agents)) => tracing::info!(agents, "agents not seen for long were forgotten"),
            Ok(Err(error)) => tracing::warn!(%error, "old agents could not be forgotten"),
        }
    }

    /// Returns how many parts, and the files of how many runs.
    pub async fn run_once(&self) -> (usize, usize) {
        let (reader, objects) = (self.reader.clone(), self.objects.clone());
        let tidied = off_the_async_threads(move || {
            let parts = objects.delete_parts(DEAD_PART)?;
            let mut runs = 0;
            for some in objects.runs()?.chunks(TIDY_LIMIT) {
                let gone = reader.pruned(some).map_err(io::Error::other)?;
                runs += delete_all(&objects, &gone);
            }
            Ok((parts, runs))
        });
        tidied.await.unwrap_or_default()
    }
}

/// Returns how many were deleted; what stays is found again by [`Tidy`].
fn delete_all(objects: &Objects, runs: &[RunId]) -> usize {
    let deleted = |run: &&RunId| match objects.delete_run(**run) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, %run, "the objects of a deleted run stay behind");
            false
        }
    };
    runs.iter().filter(deleted).count()
}

async fn off_the_async_threads<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Option<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other)
        .flatten()
        .inspect_err(|error| tracing::warn!(%error, "old files could not be deleted"))
        .ok()
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

/// Waits for the next tick; false when it is time to stop.
async fn ticked(tick: &mut tokio::time::Interval, stop: &CancellationToken) -> bool {
    tokio::select! {
        _ = tick.tick() => true,
        () = stop.cancelled() => false,
    }
}

/// Sleeps; false when it is time to stop.
async fn slept(pause: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = tokio::time::sleep(pause) => true,
        () = stop.cancelled() => false,
    }
}
