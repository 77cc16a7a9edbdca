//! Retention: runs that ended long ago go, with their logs and artifacts.

use std::sync::Arc;
use std::time::Duration;

use delta_core::{RunId, Span};
use delta_store::{Store, StoreError};

use super::delete_runs;
use super::every::Duty;
use crate::not_done::NotDone;
use crate::objects::Objects;
use crate::writer::Writer;

/// How often old runs are looked for.
const EVERY: Duration = Duration::from_secs(60);
/// Runs deleted in one go: a batch of deletions must not hold up heartbeats.
const AT_ONCE: usize = 100;

/// Delete runs that ended long ago, with their logs and artifacts, and those that were to be kept
/// for a shorter time.
pub struct Retention {
    pub writer: Writer,
    /// For good when absent.
    pub keep: Option<Span>,
    pub objects: Arc<Objects>,
}

impl Duty for Retention {
    const NAME: &'static str = "retention";
    type Counts = usize;
    type Error = NotDone;

    fn interval(&self) -> Duration {
        EVERY
    }

    /// One pass; returns how many runs were deleted.
    async fn run_once(&mut self) -> Result<usize, NotDone> {
        let now = self.writer.now();
        let kept = self.delete(move |store| store.prune_kept(now, AT_ONCE));
        let mut deleted = kept.await?;
        if let Some(keep) = self.keep {
            let before = now - keep;
            let old = self.delete(move |store| store.prune(before, AT_ONCE));
            deleted += old.await?;
        }
        if deleted > 0 {
            tracing::info!(deleted, "old runs were deleted");
        }
        Ok(deleted)
    }
}

impl Retention {
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
            let files = tokio::task::spawn_blocking(move || delete_runs(&objects, &runs));
            // What stays is found again by the duty `tidy`.
            let _ = files.await;
            if gone < AT_ONCE {
                return Ok(deleted);
            }
        }
    }
}
