//! Which runners there are at all: those of every agent that is not forgotten, as it last said,
//! here now or not. A function of a runner that none of them has fails at once (RQ-45); one whose
//! agents are away waits for them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use delta_store::read::Reader;

use crate::app::App;
use crate::not_done::NotDone;
use crate::sessions::runners_of;

/// How old the answer may be: an agent that has just come is seen in the registry anyway.
const FRESH: Duration = Duration::from_secs(2);
/// Agents that are looked at, in pages.
const PAGE: usize = 500;
const MAX_AGENTS: usize = 20_000;

#[derive(Debug, Default)]
pub struct Known(Mutex<Option<(Instant, Arc<Names>)>>);

type Names = BTreeSet<String>;

impl Known {
    /// Whether a function of this runner will be carried out by nobody, now or later. Where no
    /// agent with a runner is known, the first may still come.
    pub async fn is_hopeless(&self, app: &App, runner: &str) -> Result<bool, NotDone> {
        let runner = runner.to_lowercase();
        // Nearly every call: nobody's capabilities are looked at.
        if self.fresh().is_some_and(|known| known.contains(&runner)) {
            return Ok(false);
        }
        if is_offered(app, &format!("runner:{runner}")) {
            return Ok(false);
        }
        let known = self.all(app).await?;
        Ok(!known.is_empty() && !known.contains(&runner))
    }

    /// Whether no agent with a runner is known: then nobody can judge a call.
    pub async fn is_none(&self, app: &App) -> Result<bool, NotDone> {
        if self.fresh().is_some_and(|known| !known.is_empty()) {
            return Ok(false);
        }
        Ok(self.all(app).await?.is_empty())
    }

    /// As if nobody had asked before.
    #[cfg(test)]
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = None;
    }

    fn fresh(&self) -> Option<Arc<Names>> {
        let remembered = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let (at, known) = remembered.as_ref()?;
        (at.elapsed() < FRESH).then(|| Arc::clone(known))
    }

    /// What is remembered counts while it is fresh, unless it says that there are none where some
    /// have come meanwhile.
    async fn all(&self, app: &App) -> Result<Arc<Names>, NotDone> {
        if let Some(known) = self
            .fresh()
            .filter(|known| !known.is_empty() || !is_offered(app, "work:function"))
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

/// Whether an agent that is here now has this.
fn is_offered(app: &App, tag: &str) -> bool {
    let mut seen = app.agents.seen();
    seen.extend(app.presence.agents());
    seen.iter().any(|it| it.fits(tag))
}

fn read(reader: &dyn Reader) -> Result<Names, delta_store::StoreError> {
    let (mut known, mut after, mut seen) = (Names::default(), String::new(), 0);
    loop {
        let page = reader.agents(&after, PAGE)?;
        for agent in page.iter().filter(|agent| agent.revoked_at.is_none()) {
            known.extend(runners_of(&agent.about));
        }
        seen += page.len();
        match page.last() {
            Some(last) if page.len() == PAGE && seen < MAX_AGENTS => after = last.id.to_string(),
            _ => return Ok(known),
        }
    }
}
