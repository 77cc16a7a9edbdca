//! What outlives a session: the text about an agent in its row, for other servers and later starts.
//!
//! Owns its spelling. It is at most a minute old, and nothing is decided by it.

use delta_core::{Millis, Text};
use delta_store::agents::AgentSeen;
use serde::{Deserialize, Serialize};

use super::capabilities::About;
use super::registry::{AgentActivity, PresentAgent};
use super::runners::RunnerPool;

/// An agent as it was when this was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentRecord {
    #[serde(flatten)]
    pub about: About,
    /// It said that it works, or that it drains.
    pub busy: bool,
    pub draining: bool,
    pub quarantined: bool,
    pub leases: u32,
    pub runners: Vec<RunnerPool>,
    /// When its session began.
    pub since: Option<i64>,
    /// The last drain it has finished, and when it said so.
    pub drained: Option<(String, i64)>,
}

impl From<&PresentAgent> for AgentRecord {
    fn from(present: &PresentAgent) -> AgentRecord {
        let drained = present.drained.as_ref();
        AgentRecord {
            about: present.about.clone(),
            busy: present.status == AgentActivity::Busy,
            draining: present.status == AgentActivity::Draining,
            quarantined: present.quarantined,
            leases: present.leases,
            runners: present.runners.clone(),
            since: Some(present.since.0),
            drained: drained.map(|(id, at)| (id.clone(), at.0)),
        }
    }
}

/// The runners that an agent had, out of the text about it.
pub fn runners_of(about: &str) -> Vec<String> {
    let record: AgentRecord = serde_json::from_str(about).unwrap_or_default();
    let tags = record.about.runtimes.iter();
    let runners = tags.filter_map(|tag| tag.strip_prefix("runner:"));
    runners.map(str::to_lowercase).collect()
}

/// The text about an agent that has no session yet.
pub fn new(about: &About) -> Text {
    let about = about.clone();
    text(&AgentRecord {
        about,
        ..Default::default()
    })
}

/// What is to be written about an agent.
pub fn seen(id: &Text, present: &PresentAgent) -> AgentSeen {
    AgentSeen {
        id: id.clone(),
        slots: present.about.slots,
        about: text(&AgentRecord::from(present)),
        session: present.session,
        seen_at: present.seen_at,
    }
}

/// Reads the text of a row. One that cannot be read says nothing.
pub fn read(text: &str) -> AgentRecord {
    serde_json::from_str(text).unwrap_or_default()
}

fn text(record: &AgentRecord) -> Text {
    serde_json::to_string(record).unwrap_or_default().into()
}

impl AgentRecord {
    pub fn read(text: &str) -> AgentRecord {
        read(text)
    }

    /// When it finished this drain, if it has said so.
    pub fn drained_at(&self, drain: &str) -> Option<Millis> {
        let drained = self.drained.as_ref().filter(|(id, _)| id == drain);
        drained.map(|(_, at)| Millis(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_an_older_version_is_read() {
        let record = read(r#"{"name":"a","slots":2,"later":1}"#);
        assert_eq!((record.about.name.as_str(), record.about.slots), ("a", 2));
        assert_eq!((record.busy, record.since), (false, None));
        assert_eq!(read("nonsense"), AgentRecord::default());
        let again = AgentRecord {
            drained: Some(("d1".into(), 7)),
            ..record
        };
        assert_eq!(read(&text(&again)), again);
        assert_eq!(again.drained_at("d1"), Some(Millis(7)));
        assert_eq!(again.drained_at("d2"), None);
    }
}
