//! The duty that writes what is known of agents: news within seconds, mere presence once a minute.
//! Losing a word of it loses nothing that matters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use delta_core::{Millis, Text};
use delta_store::StoreError;
use delta_store::agents::AgentSeen;
use delta_store::side_tables::SideTables;

use super::every::Duty;
use crate::sessions::{Agents, agent_record};

/// How soon other servers read of a new session, and so end an older one of the same agent.
const EVERY: Duration = Duration::from_secs(2);
/// Between two writes that only say that an agent is still there.
const PRESENCE_EVERY: Duration = Duration::from_secs(60);
/// Agents written in one transaction: it must not hold up the writer.
const AT_ONCE: usize = 500;

pub struct WritePresence {
    agents: Arc<Agents>,
    tables: Arc<dyn SideTables>,
    written: WrittenRecords,
}

/// What was written last about those who are here: when, and as seen when.
#[derive(Default)]
struct WrittenRecords(HashMap<Text, (Instant, Millis)>);

impl Duty for WritePresence {
    const NAME: &'static str = "presence";
    type Counts = usize;
    type Error = StoreError;

    fn interval(&self) -> Duration {
        EVERY
    }

    /// One pass; returns how many agents were written.
    async fn run_once(&mut self) -> Result<usize, StoreError> {
        let mut seen = self.agents.take_seen();
        seen.extend(self.written.due(&self.agents, Instant::now()));
        let mut done = 0;
        let mut left = seen.chunks(AT_ONCE);
        while let Some(some) = left.next() {
            if let Err(error) = self.write(some.to_vec()).await {
                let unwritten = some.iter().chain(left.flatten());
                unwritten.for_each(|seen| self.agents.note_seen(seen.clone()));
                return Err(error);
            }
            self.written.note(some, Instant::now());
            done += some.len();
        }
        Ok(done)
    }

    /// What is known when the server stops is written, too.
    async fn finish(&mut self) {
        if let Err(error) = self.run_once().await {
            tracing::warn!(%error, "what is known of agents could not be written");
        }
    }
}

impl WritePresence {
    pub fn new(agents: Arc<Agents>, tables: Arc<dyn SideTables>) -> WritePresence {
        WritePresence {
            agents,
            tables,
            written: WrittenRecords::default(),
        }
    }

    async fn write(&self, seen: Vec<AgentSeen>) -> Result<(), StoreError> {
        let tables = self.tables.clone();
        let write = tokio::task::spawn_blocking(move || tables.agents_seen(&seen));
        // A pass that panicked is a pass that is lost.
        write.await.unwrap_or(Ok(()))
    }
}

impl WrittenRecords {
    /// Those who are here and were heard of since they were written, a minute ago.
    fn due(&mut self, agents: &Agents, now: Instant) -> Vec<AgentSeen> {
        let all = agents.all();
        if self.0.len() > 2 * all.len() {
            let here: std::collections::HashSet<&Text> = all.iter().map(|(id, _)| id).collect();
            self.0.retain(|id, _| here.contains(id));
        }
        let due = all.iter().filter(|(id, present)| {
            self.0.get(id).is_none_or(|(at, seen_at)| {
                now.duration_since(*at) >= PRESENCE_EVERY && present.seen_at > *seen_at
            })
        });
        due.map(|(id, present)| agent_record::seen(id, present))
            .collect()
    }

    fn note(&mut self, seen: &[AgentSeen], now: Instant) {
        let entries = seen.iter().map(|it| (it.id.clone(), (now, it.seen_at)));
        self.0.extend(entries);
    }
}

#[cfg(test)]
mod tests {
    use delta_store::agents::AgentRow;

    use super::*;
    use crate::sessions::About;
    use crate::store_sides::StoreSides;

    #[tokio::test]
    async fn news_is_written_at_once_and_presence_once_a_minute() {
        // D3
        let StoreSides { reader, tables } = StoreSides::in_memory();
        let agents = Arc::new(Agents::default());
        let id: Text = "a".into();
        let row = AgentRow {
            id: id.clone(),
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
        assert!(tables.new_agent(&row).unwrap());
        let mut presence = WritePresence::new(agents.clone(), tables);
        let enter = |at| agents.enter(&id, "i", About::default(), 0, Millis(at));
        let entered = enter(5).unwrap();
        assert_eq!(presence.run_once().await.unwrap(), 1);
        let stored = reader.agent("a").unwrap().unwrap();
        assert_eq!((stored.session, stored.seen_at), (entered.epoch, Millis(5)));
        agents.heard(&id, entered.epoch, Millis(6));
        assert_eq!(presence.run_once().await.unwrap(), 0);
        let later = Instant::now() + PRESENCE_EVERY;
        assert_eq!(presence.written.due(&agents, later).len(), 1);
        agents.leave(&id, entered.epoch);
        assert_eq!(presence.run_once().await.unwrap(), 1);
        assert_eq!(reader.agent("a").unwrap().unwrap().seen_at, Millis(6));
        assert_eq!(presence.written.due(&agents, later).len(), 0, "it is gone");
    }
}
