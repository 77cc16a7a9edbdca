//! Tidying: files that a server which died left behind, caches that nobody uses, agents that were
//! not seen for long.

use std::io;
use std::time::{Duration, SystemTime};

use delta_core::Span;

use super::delete_runs;
use super::every::{Counts, Duty};
use crate::app::App;
use crate::not_done::NotDone;
use crate::objects::DEAD_PART;

/// How often left-over files are looked for: they harm nobody, and looking reads a whole folder.
const EVERY: Duration = Duration::from_secs(3600);
/// Agents that were not seen for this long are forgotten: machines that come and go would fill the
/// list of those that stay.
const AGENT_KEPT: Span = Span::hours(24 * 30);
/// Runs asked about in one read.
const AT_ONCE: usize = 500;

/// Delete parts nobody sends any more, what belongs to runs that were deleted, by this server or by
/// another on the same store, and what is beyond the limits of caches; forget agents.
pub struct Tidy {
    app: App,
    /// A pass was made.
    started: bool,
}

/// What one pass removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    pub parts: usize,
    /// Runs whose files are gone.
    pub runs: usize,
    pub caches: usize,
    pub agents: usize,
}

impl Counts for Tidied {
    fn done(&self) -> usize {
        self.parts + self.runs + self.caches + self.agents
    }
}

impl Duty for Tidy {
    const NAME: &'static str = "tidy";
    type Counts = Tidied;
    type Error = NotDone;

    fn interval(&self) -> Duration {
        EVERY
    }

    /// One pass. What fails keeps nothing else from being done, and is said afterwards.
    async fn run_once(&mut self) -> Result<Tidied, NotDone> {
        let files = self.delete_files().await;
        let caches = self.evict_caches().await;
        // Not right after a start: those who waited for it come back first.
        let agents = if self.started {
            self.forget_agents().await
        } else {
            Ok(0)
        };
        self.started = true;
        let (parts, runs) = files?;
        let tidied = Tidied {
            parts,
            runs,
            caches: caches?,
            agents: agents?,
        };
        if tidied.done() > 0 {
            let Tidied {
                parts,
                runs,
                caches,
                agents,
            } = tidied;
            tracing::info!(
                parts,
                runs,
                caches,
                agents,
                "what was left over was removed"
            );
        }
        Ok(tidied)
    }
}

impl Tidy {
    pub fn new(app: App) -> Tidy {
        Tidy {
            app,
            started: false,
        }
    }

    /// Returns how many parts, and the files of how many runs.
    async fn delete_files(&self) -> Result<(usize, usize), NotDone> {
        let reader = self.app.sides.reader.clone();
        let deleted = self.app.files(move |objects| {
            let parts = objects.delete_parts(DEAD_PART)?;
            let mut runs = 0;
            for some in objects.runs()?.chunks(AT_ONCE) {
                let gone = reader.pruned(some).map_err(io::Error::other)?;
                runs += delete_runs(objects, &gone);
            }
            Ok((parts, runs))
        });
        deleted.await
    }

    async fn evict_caches(&self) -> Result<usize, NotDone> {
        let limits = self.app.cache_limits;
        let evict = move |objects: &crate::objects::Objects| {
            objects.caches().evict(limits, SystemTime::now())
        };
        let (caches, bytes) = self.app.files(evict).await?;
        if caches > 0 {
            self.app.metrics().caches_evicted.inc_by(caches as u64);
            tracing::debug!(caches, bytes, "caches were evicted");
        }
        Ok(caches)
    }

    /// An agent that comes back later registers anew.
    async fn forget_agents(&self) -> Result<usize, NotDone> {
        let before = self.app.writer.now() - AGENT_KEPT;
        let forgotten = self.app.write(move |tables| tables.forget_agents(before));
        Ok(usize::try_from(forgotten.await?).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use delta_core::Millis;
    use delta_store::agents::AgentRow;

    use super::*;
    use crate::{Config, StoreChoice};

    #[tokio::test(flavor = "multi_thread")]
    async fn agents_that_were_away_with_the_server_have_one_pass_to_come_back() {
        let data = tempfile::tempdir().unwrap();
        let config = Config {
            store: StoreChoice::Memory,
            duties: false,
            ..Config::recommended(data.path().to_owned())
        };
        let server = crate::start(config).await.unwrap();
        let gone = AgentRow {
            id: "gone".into(),
            principal: "p".into(),
            resume: None,
            slots: 1,
            about: "".into(),
            session: 0,
            drain: None,
            created_at: Millis(1),
            seen_at: Millis(1),
            revoked_at: None,
            process: None,
        };
        assert!(server.app.sides.tables.new_agent(&gone).unwrap());
        let mut tidy = Tidy::new(server.app.clone());
        assert_eq!(tidy.run_once().await.unwrap(), Tidied::default());
        let forgotten = Tidied {
            agents: 1,
            ..Tidied::default()
        };
        assert_eq!(tidy.run_once().await.unwrap(), forgotten);
        assert_eq!(tidy.run_once().await.unwrap(), Tidied::default());
        server.shutdown().await;
    }
}
