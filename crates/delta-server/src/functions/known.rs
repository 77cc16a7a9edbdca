//! Which runners there are at all: those of every agent that is not forgotten, as it last said,
//! here now or not. A function of a runner that none of them has fails at once (RQ-45); one whose
//! agents are away waits for them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use delta_core::Millis;
use delta_store::read::Reader;

use crate::agents::runners_of;
use crate::http::{ApiError, App};

/// How old the answer may be: an agent that has just come is seen in the registry anyway.
const FRESH: Duration = Duration::from_secs(2);
/// Agents that are looked at, in pages.
const PAGE: usize = 500;
const MAX_AGENTS: usize = 20_000;

#[derive(Debug, Default)]
pub struct Known(Mutex<Option<(Instant, Arc<Runners>)>>);

#[derive(Debug, Default)]
struct Runners {
    names: BTreeSet<String>,
    /// When the first agent came that has one.
    since: Option<Millis>,
}

impl Known {
    /// Whether a function of this runner will be carried out by nobody, now or later. Where no
    /// agent with a runner is known, the first may still come.
    pub async fn is_hopeless(&self, app: &App, runner: &str) -> Result<bool, ApiError> {
        let runner = runner.to_lowercase();
        // Nearly every call: nobody's capabilities are looked at.
        if self
            .fresh()
            .is_some_and(|known| known.names.contains(&runner))
        {
            return Ok(false);
        }
        let mut seen = app.agents.seen();
        seen.extend(app.presence.agents());
        let offers = |tag: &str| seen.iter().any(|it| it.fits(tag));
        if offers(&format!("runner:{runner}")) {
            return Ok(false);
        }
        let known = self.all(app, offers("work:function")).await?;
        Ok(!known.names.is_empty() && !known.names.contains(&runner))
    }

    /// Since when an agent with a runner is known: calls that came before it were judged by nobody.
    pub async fn since(&self, app: &App) -> Result<Option<Millis>, ApiError> {
        let known = self.all(app, false).await?;
        Ok(known.since)
    }

    /// As if nobody had asked before.
    #[cfg(test)]
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = None;
    }

    fn fresh(&self) -> Option<Arc<Runners>> {
        let remembered = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let (at, known) = remembered.as_ref()?;
        (at.elapsed() < FRESH).then(|| Arc::clone(known))
    }

    /// What is remembered counts while it is fresh, unless it says that there are none where some
    /// have come meanwhile.
    async fn all(&self, app: &App, some: bool) -> Result<Arc<Runners>, ApiError> {
        if let Some(known) = self
            .fresh()
            .filter(|known| !(some && known.names.is_empty()))
        {
            return Ok(known);
        }
        let known = app.read(|reader| read(reader)).await?;
        let known = Arc::new(known);
        let mut remembered = self.0.lock().unwrap_or_else(|e| e.into_inner());
        *remembered = Some((Instant::now(), Arc::clone(&known)));
        Ok(known)
    }
}

fn read(reader: &dyn Reader) -> Result<Runners, delta_store::StoreError> {
    let (mut known, mut after, mut seen) = (Runners::default(), String::new(), 0);
    loop {
        let page = reader.agents(&after, PAGE)?;
        for agent in page.iter().filter(|agent| agent.revoked_at.is_none()) {
            let runners = runners_of(&agent.about);
            if !runners.is_empty() {
                let since = known.since.unwrap_or(agent.created_at);
                known.since = Some(since.min(agent.created_at));
            }
            known.names.extend(runners);
        }
        seen += page.len();
        match page.last() {
            Some(last) if page.len() == PAGE && seen < MAX_AGENTS => after = last.id.to_string(),
            _ => return Ok(known),
        }
    }
}
