//! The sweep: whatever is due is settled, soon after it is due.
//!
//! It finds candidates and asks the core about each; what has changed meanwhile is a no-op.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use delta_core::{Command, Millis, Reply, Span};
use delta_store::Due;
use tokio::sync::Notify;

use super::every::{Counts, Duty};
use crate::clock::DIVERGENCE;
use crate::not_done::NotDone;
use crate::writer::Writer;

/// Due things looked for at first, and sent to the writer at once: four batches.
const SWEEP_LIMIT: usize = 1_000;

/// Expire, time out, force cancels, publish retries, and look for work for parked slots.
pub struct Sweep {
    writer: Writer,
    interval: Span,
    clocks_disagree: bool,
}

/// What one sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub looked_at: usize,
    pub changed: usize,
}

impl Duty for Sweep {
    const NAME: &'static str = "sweep";
    type Counts = Swept;
    type Error = NotDone;

    fn interval(&self) -> Duration {
        Duration::from_millis(self.interval.0.unsigned_abs())
    }

    /// Somebody of a group is over, or has come: nobody waits for the next pass.
    fn bell(&self) -> Option<Arc<Notify>> {
        Some(self.writer.shared().turns.clone())
    }

    async fn run_once(&mut self) -> Result<Swept, NotDone> {
        self.watch_clock();
        let shared = self.writer.shared();
        self.look_for_others().await?;
        // By a wrong clock nothing is due or not due; the wake-up looks at the store's (A23).
        let swept = match shared.unfit() {
            Some(_) => Swept::default(),
            None => self.settle_due(SWEEP_LIMIT).await?,
        };
        if swept.changed > 0 {
            tracing::debug!(swept.looked_at, swept.changed, "swept");
        }
        if shared.several_writers {
            shared.watchers.wake_all();
        }
        self.writer.wake();
        Ok(swept)
    }
}

impl Counts for Swept {
    fn done(&self) -> usize {
        self.changed
    }
}

impl Sweep {
    pub fn new(writer: Writer, interval: Span) -> Sweep {
        Sweep {
            writer,
            interval,
            clocks_disagree: false,
        }
    }

    /// Says once when the clocks begin to disagree (A23), and once when they agree again.
    fn watch_clock(&mut self) {
        let trouble = self.writer.shared().clock.trouble();
        match &trouble {
            Some(why) if !self.clocks_disagree => tracing::error!(why, "the clocks disagree"),
            None if self.clocks_disagree => tracing::info!("the clocks agree again"),
            _ => {}
        }
        self.clocks_disagree = trouble.is_some();
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

/// After a start no lease outlives now + ttl, in case the clock went back.
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
