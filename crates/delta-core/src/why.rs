//! "Why is this waiting, and when must it end?" computed by the real matcher and the real rows
//! (D12), never guessed.

use crate::Text;
use crate::attempt::{Attempt, AttemptState};
use crate::job::Job;
use crate::requirement::Capabilities;
use crate::run::{Run, RunState};
use crate::time::{Millis, Span};

/// An agent as the server last saw it.
#[derive(Clone, Debug)]
pub struct SeenAgent {
    pub name: Text,
    /// What its slots take: one offer, or one for each runner pool.
    pub offers: Vec<SeenOffer>,
}

/// Slots of an agent that take the same.
#[derive(Clone, Debug)]
pub struct SeenOffer {
    pub capabilities: Capabilities,
    /// None of them is free.
    pub busy: bool,
}

impl SeenAgent {
    pub fn fits(&self, key: &str) -> bool {
        self.offers.iter().any(|it| it.capabilities.fits(key))
    }

    /// Whether no slot that could take this is free.
    fn is_busy(&self, key: &str) -> bool {
        let mut fit = self.offers.iter().filter(|it| it.capabilities.fits(key));
        fit.all(|it| it.busy)
    }

    /// What the nearest of its slots lacks.
    fn missing(&self, key: &str) -> Vec<String> {
        let missing = self.offers.iter().map(|it| it.capabilities.missing(key));
        missing.min_by_key(Vec::len).unwrap_or_default()
    }
}

/// Why a job is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Other jobs must end first.
    WaitingForNeeds(Vec<Text>),
    /// A retry waits for its delay.
    WaitingForRetry(Span),
    /// No agent was seen at all.
    NoAgents,
    /// Agents were seen, none fits: the nearest one and what it lacks.
    NoFitAgent {
        nearest: Text,
        missing: Vec<String>,
        seen: usize,
    },
    /// Fit agents exist and all are busy.
    AllBusy {
        fit: usize,
        ahead: u64,
    },
    /// Fit agents are free: it is this one's turn after those ahead.
    NextInLine {
        ahead: u64,
    },
    /// Granted, not yet acknowledged.
    WaitingForAcknowledgement {
        runner: Text,
    },
    Executing {
        runner: Text,
    },
    /// A cancel was asked for; forced at the latest then.
    Canceling {
        forced_at: Option<Millis>,
    },
    /// Its run is being planned.
    Planning,
    Ended,
}

/// What the answer is computed from.
pub struct Scene<'a> {
    pub run: &'a Run,
    pub job: &'a Job,
    pub attempt: &'a Attempt,
    /// Names of the needs that are not met.
    pub unmet: Vec<Text>,
    pub agents: &'a [SeenAgent],
    /// Queued attempts with the same requirements that come first.
    pub ahead: u64,
    pub now: Millis,
}

pub fn why(scene: &Scene) -> Why {
    let attempt = scene.attempt;
    let runner = || {
        attempt
            .lease
            .as_ref()
            .map_or_else(|| "".into(), |lease| lease.runner.clone())
    };
    if scene.job.resolution.is_some() {
        return Why::Ended;
    }
    match attempt.state {
        _ if scene.run.state == RunState::Planning => Why::Planning,
        AttemptState::Created if !scene.unmet.is_empty() => {
            Why::WaitingForNeeds(scene.unmet.clone())
        }
        AttemptState::Created => Why::WaitingForRetry(attempt.not_before.since(scene.now)),
        AttemptState::Queued => queued(scene),
        AttemptState::Leased => Why::WaitingForAcknowledgement { runner: runner() },
        AttemptState::CancelRequested => Why::Canceling {
            forced_at: attempt.cancel_deadline(),
        },
        AttemptState::Starting | AttemptState::Running | AttemptState::Uploading => {
            Why::Executing { runner: runner() }
        }
        _ => Why::Ended,
    }
}

fn queued(scene: &Scene) -> Why {
    let key = &scene.job.policy.requires;
    let fit = || scene.agents.iter().filter(|agent| agent.fits(key));
    if scene.agents.is_empty() {
        return Why::NoAgents;
    }
    if fit().next().is_none() {
        let missing = |agent: &SeenAgent| agent.missing(key);
        let nearest = scene.agents.iter().min_by_key(|agent| missing(agent).len());
        let nearest = nearest.expect("there is at least one agent");
        return Why::NoFitAgent {
            nearest: nearest.name.clone(),
            missing: missing(nearest),
            seen: scene.agents.len(),
        };
    }
    if fit().all(|agent| agent.is_busy(key)) {
        return Why::AllBusy {
            fit: fit().count(),
            ahead: scene.ahead,
        };
    }
    Why::NextInLine { ahead: scene.ahead }
}

impl Why {
    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Why::WaitingForNeeds(_) => "waiting_for_needs",
            Why::WaitingForRetry(_) => "waiting_for_retry",
            Why::NoAgents => "no_agents",
            Why::NoFitAgent { .. } => "no_fit_agent",
            Why::AllBusy { .. } => "all_busy",
            Why::NextInLine { .. } => "next_in_line",
            Why::WaitingForAcknowledgement { .. } => "waiting_for_acknowledgement",
            Why::Executing { .. } => "executing",
            Why::Canceling { .. } => "canceling",
            Why::Planning => "planning",
            Why::Ended => "ended",
        }
    }
}

/// A sentence for people.
impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::WaitingForNeeds(names) => write!(f, "waits for {}", names.join(", ")),
            Why::WaitingForRetry(left) => write!(f, "will be tried again in {left}"),
            Why::NoAgents => f.write_str("no agent has asked for work yet"),
            Why::NoFitAgent {
                nearest,
                missing,
                seen,
            } => {
                let missing = missing.join(", ");
                match seen {
                    1 => write!(f, "the only agent, {nearest}, lacks {missing}"),
                    _ => write!(
                        f,
                        "none of {seen} agents fits; the nearest, {nearest}, lacks {missing}"
                    ),
                }
            }
            Why::AllBusy { fit: 1, ahead } => {
                write!(f, "the only fit agent is busy; {}", Turn(*ahead))
            }
            Why::AllBusy { fit, ahead } => {
                write!(f, "all {fit} fit agents are busy; {}", Turn(*ahead))
            }
            Why::NextInLine { ahead: 0 } => f.write_str("next in line for a free agent"),
            Why::NextInLine { ahead } => write!(f, "{}", Turn(*ahead)),
            Why::WaitingForAcknowledgement { runner } => {
                write!(f, "granted to {runner}, which has not acknowledged yet")
            }
            Why::Executing { runner } => write!(f, "executing on {runner}"),
            Why::Canceling { .. } => f.write_str("being canceled; waits for the agent to stop"),
            Why::Planning => f.write_str("its run is being planned"),
            Why::Ended => f.write_str("it has ended"),
        }
    }
}

/// How many jobs come before this one.
struct Turn(u64);

impl std::fmt::Display for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("this job is next"),
            1 => f.write_str("1 job comes first"),
            ahead => write!(f, "{ahead} jobs come first"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_busy_for_those_whose_slots_are_taken() {
        let offer = |tags: [&str; 2], busy| SeenOffer {
            capabilities: Capabilities::parse(tags),
            busy,
        };
        let agent = SeenAgent {
            name: "a".into(),
            offers: vec![
                offer(["work:function", "runner:a"], true),
                offer(["work:function", "runner:b"], false),
            ],
        };
        assert!(agent.is_busy("runner:a work:function"));
        assert!(!agent.is_busy("runner:b work:function"));
        assert!(!agent.fits("runner:c work:function"));
        assert_eq!(agent.missing("runner:c work:function"), ["runner:c"]);
    }

    #[test]
    fn one_and_many_read_differently() {
        let busy = |fit, ahead| Why::AllBusy { fit, ahead }.to_string();
        assert_eq!(busy(1, 0), "the only fit agent is busy; this job is next");
        assert_eq!(busy(2, 1), "all 2 fit agents are busy; 1 job comes first");
        assert_eq!(busy(2, 3), "all 2 fit agents are busy; 3 jobs come first");
        let lacking = |seen| Why::NoFitAgent {
            nearest: "a1".into(),
            missing: vec!["gpu".into()],
            seen,
        };
        assert_eq!(lacking(1).to_string(), "the only agent, a1, lacks gpu");
        assert!(lacking(2).to_string().starts_with("none of 2 agents fits"));
    }
}
