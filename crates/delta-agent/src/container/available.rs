//! What makes containers on this machine, as it answered last: when the agent began, or since then
//! before it registered again.
//!
//! A daemon comes and goes without the agent. What is offered to the server is what answered before
//! the registration, and a job is planned with the same.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use delta_shim::container::Runtime;

use super::{ContainerSettings, detect};

pub(crate) struct Here {
    /// Nothing where nobody is to be asked.
    settings: Option<ContainerSettings>,
    found: Mutex<Option<Arc<Runtime>>>,
}

impl Here {
    pub fn unknown(settings: Option<ContainerSettings>) -> Here {
        Here {
            settings,
            found: Mutex::new(None),
        }
    }

    pub fn runtime(&self) -> Option<Arc<Runtime>> {
        self.lock().clone()
    }

    /// Asks anew. Where that takes longer than it may, what was known stands.
    pub async fn look(&self, within: Duration) {
        let Some(settings) = &self.settings else {
            return;
        };
        let Ok(found) = tokio::time::timeout(within, detect(settings)).await else {
            return;
        };
        let found = found.map(Arc::new);
        let kind = |it: &Option<Arc<Runtime>>| it.as_ref().map(|it| it.kind.as_str());
        let mut known = self.lock();
        if kind(&known) != kind(&found) {
            let now = kind(&found).unwrap_or("nothing");
            tracing::info!("{now} makes containers here");
        }
        *known = found;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Runtime>>> {
        self.found
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }
}
