//! Agents as people and tools see them: what they are, what they do, whether they take work.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::list::{DEFAULT_LIMIT, MAX_LIMIT};
use crate::invalid::{Invalid, Problems};
use crate::states::spelled;
use crate::time::Millis;

/// Characters of a cursor: the longest id of an agent.
const MAX_CURSOR: usize = 128;

spelled! {
    /// How an agent stands. Only presence: no lease depends on it.
    AgentStatus {
        Idle = "IDLE",
        Busy = "BUSY",
        Draining = "DRAINING",
        Offline = "OFFLINE",
        Quarantined = "QUARANTINED",
        Revoked = "REVOKED",
    }
}

/// An agent that has registered at some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentView {
    #[schema(example = "agt_1f3a5b7c9d0e2f4a")]
    pub agent_id: String,
    /// Its own word for itself: untrusted, and not always unique.
    pub name: String,
    pub status: AgentStatus,
    pub pool: String,
    pub zones: Vec<String>,
    pub labels: Vec<String>,
    pub os: String,
    pub arch: String,
    /// `name=version`
    pub runtimes: Vec<String>,
    /// Kinds of work: `steps`, `tests`, `function`.
    pub work: Vec<String>,
    pub docker: bool,
    pub resources: AgentResources,
    pub slots: u32,
    /// Leases it held when it was last looked at; `leases` lists them as the store has them now.
    pub live_leases: u32,
    /// What it works on. Only where one agent is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<Vec<AgentLease>>,
    /// How its runner pools are, as it last said. Only where one agent is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runners: Option<Vec<RunnerPoolView>>,
    /// Of its program.
    pub version: String,
    /// What its sandbox enforces, in its own words.
    pub enforced: Vec<String>,
    /// Rises with every session; the newest is the one that counts.
    pub session_epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_since: Option<Millis>,
    pub seen_at: Millis,
    pub created_at: Millis,
    /// Set while it is to take no work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Millis>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentResources {
    pub cpu_cores: i32,
    pub memory_mb: i64,
    pub disk_mb: i64,
}

/// Processes on an agent's machine that hold functions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunnerPoolView {
    /// Called as `name#handler`.
    pub name: String,
    /// Processes that take calls, of so many that there should be.
    pub up: u32,
    pub wanted: u32,
    /// Calls under way, of so many that it takes at a time.
    pub in_flight: u32,
    pub room: u32,
    /// Calls that wait in the agent.
    pub waiting: u32,
    /// Times a process was started again.
    pub restarts: u64,
    /// Why a process last was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// A live lease of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentLease {
    pub job_id: String,
    pub attempt: u32,
    pub lease_epoch: u64,
    /// From 1.
    pub slot: u32,
    /// The agent has said that it does the work.
    pub accepted: bool,
}

/// A drain: no lease is ended by it, and none is granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainView {
    pub drain_id: String,
    pub leases_left: u32,
    /// Since when the agent says that all its work is done (DrainComplete).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_at: Option<Millis>,
}

impl AgentView {
    /// Nothing of it runs and nothing will: it has said so, or it is gone and holds no lease.
    pub fn is_drained(&self) -> bool {
        let gone = matches!(self.status, AgentStatus::Offline | AgentStatus::Revoked);
        self.drain
            .as_ref()
            .is_some_and(|drain| drain.leases_left == 0 && (drain.drained_at.is_some() || gone))
    }
}

/// A page of agents, in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentList {
    pub agents: Vec<AgentView>,
    /// Null on the last page.
    pub next_cursor: Option<String>,
}

/// `GET /api/v1/agents`.
#[derive(Clone, Debug, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListAgents {
    /// How many of them.
    #[param(value_type = Option<u32>)]
    pub limit: u32,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl ListAgents {
    /// Reads decoded query parameters; unknown ones are refused, each at most once.
    pub fn parse<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<ListAgents, Problems> {
        let mut problems = Problems::new();
        let (mut limit, mut cursor) = (None, None);
        for (name, value) in pairs {
            let problem = match name {
                "limit" if limit.is_some() => "is given twice".to_owned(),
                "cursor" if cursor.is_some() => "is given twice".to_owned(),
                "limit" => match value.parse().ok().filter(|it| (1..=MAX_LIMIT).contains(it)) {
                    Some(number) => {
                        limit = Some(number);
                        continue;
                    }
                    None => format!("must be a whole number from 1 to {MAX_LIMIT}"),
                },
                "cursor" if value.len() <= MAX_CURSOR => {
                    cursor = Some(value.to_owned());
                    continue;
                }
                "cursor" => "is not one of ours".to_owned(),
                _ => "is not known; known here: limit, cursor".to_owned(),
            };
            problems.push(Invalid::field(name, problem));
        }
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        if problems.is_empty() {
            Ok(ListAgents { limit, cursor })
        } else {
            Err(problems)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_asked_for_and_slips_are_named() {
        let asked = ListAgents::parse([("limit", "7"), ("cursor", "agt_1")]).unwrap();
        assert_eq!((asked.limit, asked.cursor.as_deref()), (7, Some("agt_1")));
        let slips = [
            ("limit", "0"),
            ("pool", "x"),
            ("cursor", "a"),
            ("cursor", "b"),
        ];
        let problems = ListAgents::parse(slips).unwrap_err();
        let places: Vec<&str> = problems.iter().map(Invalid::place).collect();
        assert_eq!(places, ["limit", "pool", "cursor"]);
    }
}
