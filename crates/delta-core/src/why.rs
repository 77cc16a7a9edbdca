//! "Why is this waiting, and when must it end?" computed by the real matcher and the real rows
//! (D12), never guessed.

use crate::Text;
use crate::attempt::{Attempt, AttemptState};
use crate::group::{Concurrency, Members};
use crate::id::JobId;
use crate::job::Job;
use crate::lease::Lease;
use crate::requirement::Capabilities;
use crate::run::{Run, RunState};
use crate::time::{Millis, Span};

/// An agent as the server last saw it.
#[derive(Clone, Debug)]
pub struct SeenAgent {
    pub name: Text,
    /// What its slots take: one offer, or one for each runner pool.
    pub offers: Vec<SeenOffer>,
    /// Its runner pools of which no process is there, and why.
    pub down: Vec<(Text, Text)>,
    /// Why it turned work away, since which it has taken none.
    pub turns_away: Option<Text>,
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
        self.offers.iter().any(|offer| offer.capabilities.fits(key))
    }

    /// Whether no slot that could take this is free.
    fn is_busy(&self, key: &str) -> bool {
        let mut fit = self
            .offers
            .iter()
            .filter(|offer| offer.capabilities.fits(key));
        fit.all(|it| it.busy)
    }

    /// Why the runner that this names cannot be called here.
    fn down(&self, key: &str) -> Option<&Text> {
        let runner = key
            .split(' ')
            .find_map(|word| word.strip_prefix("runner:"))?;
        let mut down = self.down.iter();
        let found = down.find(|(name, _)| name.eq_ignore_ascii_case(runner))?;
        Some(&found.1)
    }

    /// What the nearest of its slots lacks.
    fn missing(&self, key: &str) -> Vec<String> {
        let missing = self
            .offers
            .iter()
            .map(|offer| offer.capabilities.missing(key));
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
    /// It is not to begin before a moment that whoever made it chose.
    WaitingForMoment(Span),
    /// Its queue hands out nothing.
    Paused(Text),
    /// Others of its concurrency group come first.
    WaitingForTurn(Line),
    /// No agent was seen at all.
    NoAgents,
    /// Agents were seen, none fits: the nearest one and what it lacks.
    NoFitAgent {
        nearest: Text,
        missing: Vec<String>,
        seen: usize,
    },
    /// Fit agents have its runner, and no process of it is there.
    RunnerDown {
        agent: Text,
        why: Text,
        fit: usize,
    },
    /// Fit agents exist, and each has turned work away.
    TurnedAway {
        agent: Text,
        why: Text,
        fit: usize,
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
    /// The agent that holds it was revoked: its lease runs out, and gives no right until then.
    HolderRevoked {
        runner: Text,
        left: Span,
    },
    /// A cancel was asked for; forced at the latest then.
    Canceling {
        forced_at: Option<Millis>,
    },
    /// Its run is being planned.
    Planning,
    Ended,
}

/// Where something stands in the line of its concurrency group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub group: Text,
    /// Whose turn it is: a run, or a job.
    pub held_by: Option<JobId>,
    /// Members that wait, and whose turn comes first.
    pub ahead: usize,
}

impl Line {
    pub fn of(concurrency: &Concurrency, members: &Members, id: JobId) -> Line {
        let held = members
            .values()
            .find(|member| member.taken && member.id != id);
        let ahead = members.range(..id).filter(|(_, it)| !it.taken).count();
        Line {
            group: concurrency.group.clone(),
            held_by: held.map(|held| held.id),
            ahead,
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "waits for its turn in the group `{}`", self.group)?;
        match self.held_by {
            Some(id) if id.n == 0 => write!(f, ", which {} has", id.run)?,
            Some(id) => write!(f, ", which {id} has")?,
            None => {}
        }
        match self.ahead {
            0 => Ok(()),
            1 => f.write_str("; 1 other comes first"),
            ahead => write!(f, "; {ahead} others come first"),
        }
    }
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
    /// Where the run stands in the line of its group, or else the job in that of its own.
    pub line: Option<Line>,
    /// The queue of a function, when it is paused.
    pub paused: Option<Text>,
    /// Whether the agent whose slot holds the lease was revoked.
    pub holder_revoked: bool,
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
        AttemptState::Created if scene.run.waits_for_turn() || scene.job.waits_for_turn() => {
            Why::WaitingForTurn(scene.line.clone().unwrap_or_else(|| Line {
                group: "".into(),
                held_by: None,
                ahead: 0,
            }))
        }
        AttemptState::Created if attempt.id.index == 1 => {
            Why::WaitingForMoment(attempt.not_before.since(scene.now))
        }
        AttemptState::Created => Why::WaitingForRetry(attempt.not_before.since(scene.now)),
        AttemptState::Queued => queued(scene),
        AttemptState::Leased
        | AttemptState::Starting
        | AttemptState::Running
        | AttemptState::Uploading
            if scene.holder_revoked =>
        {
            let ends = attempt.lease.as_ref().map(Lease::ends_at);
            Why::HolderRevoked {
                runner: runner(),
                left: ends.map_or(Span::ZERO, |at| at.since(scene.now)),
            }
        }
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
    if let Some(queue) = &scene.paused {
        return Why::Paused(queue.clone());
    }
    if scene.agents.is_empty() {
        return Why::NoAgents;
    }
    if fit().next().is_none() {
        let missing = |agent: &SeenAgent| agent.missing(key);
        let nearest = scene
            .agents
            .iter()
            .min_by_key(|agent| missing(agent).len())
            .expect("there is at least one agent");
        return Why::NoFitAgent {
            nearest: nearest.name.clone(),
            missing: missing(nearest),
            seen: scene.agents.len(),
        };
    }
    let mut down = fit().map(|agent| Some((agent, agent.down(key)?)));
    if let Some(Some((agent, why))) = down.next()
        && down.all(|it| it.is_some())
    {
        return Why::RunnerDown {
            agent: agent.name.clone(),
            why: why.clone(),
            fit: fit().count(),
        };
    }
    let mut away = fit().map(|agent| Some((agent, agent.turns_away.as_ref()?)));
    if let Some(Some((agent, why))) = away.next()
        && away.all(|it| it.is_some())
    {
        return Why::TurnedAway {
            agent: agent.name.clone(),
            why: why.clone(),
            fit: fit().count(),
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
    /// Why another job with these requirements waits, behind so many.
    pub fn behind(&self, ahead: u64) -> Why {
        match self {
            Why::AllBusy { fit, .. } => Why::AllBusy { fit: *fit, ahead },
            Why::NextInLine { .. } => Why::NextInLine { ahead },
            other => other.clone(),
        }
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Why::WaitingForNeeds(_) => "waiting_for_needs",
            Why::WaitingForRetry(_) => "waiting_for_retry",
            Why::WaitingForMoment(_) => "waiting_for_moment",
            Why::WaitingForTurn(_) => "waiting_for_turn",
            Why::Paused(_) => "queue_paused",
            Why::NoAgents => "no_agents",
            Why::NoFitAgent { .. } => "no_fit_agent",
            Why::RunnerDown { .. } => "runner_down",
            Why::TurnedAway { .. } => "turned_away",
            Why::AllBusy { .. } => "all_busy",
            Why::NextInLine { .. } => "next_in_line",
            Why::WaitingForAcknowledgement { .. } => "waiting_for_acknowledgement",
            Why::Executing { .. } => "executing",
            Why::HolderRevoked { .. } => "holder_revoked",
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
            Why::WaitingForRetry(left) => write!(f, "will be tried again in {}", Roughly(*left)),
            Why::WaitingForMoment(left) => write!(f, "is to begin in {}", Roughly(*left)),
            Why::Paused(queue) => write!(
                f,
                "its queue `{queue}` is paused; `delta-ci resume {queue}` ends that"
            ),
            Why::WaitingForTurn(line) => write!(f, "{line}"),
            Why::NoAgents => f.write_str("no agent has asked for work yet"),
            Why::NoFitAgent {
                nearest,
                missing,
                seen,
            } => {
                let missing: Vec<String> = missing.iter().map(|it| lack(it)).collect();
                let missing = missing.join(", ");
                match seen {
                    1 => write!(f, "the only agent, {nearest}, lacks {missing}"),
                    _ => write!(
                        f,
                        "none of {seen} agents fits; the nearest, {nearest}, lacks {missing}"
                    ),
                }
            }
            Why::RunnerDown { agent, why, fit: 1 } => {
                write!(f, "its runner is down on {agent}: {why}")
            }
            Why::RunnerDown { agent, why, fit } => write!(
                f,
                "its runner is down on all {fit} agents that have it; on {agent}: {why}"
            ),
            Why::TurnedAway { agent, why, fit: 1 } => {
                write!(f, "the only fit agent, {agent}, turns work away: {why}")
            }
            Why::TurnedAway { agent, why, fit } => {
                write!(f, "all {fit} fit agents turn work away; {agent}: {why}")
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
            Why::HolderRevoked { runner, left } => write!(
                f,
                "its agent was revoked: nothing that {runner} sends counts any more; its lease \
                 runs out in {}",
                Roughly(*left)
            ),
            Why::Canceling { .. } => f.write_str("being canceled; waits for the agent to stop"),
            Why::Planning => f.write_str("its run is being planned"),
            Why::Ended => f.write_str("it has ended"),
        }
    }
}

/// What an agent lacks, in words that its settings have.
fn lack(requirement: &str) -> String {
    match requirement.strip_prefix("unnamed=") {
        Some(queue) => format!(
            "a runner for calls of the queue `{queue}` that name none (`queues` or `default` in \
             its file of runners)"
        ),
        None => match crate::tool::advice(requirement) {
            Some(install) => format!("{requirement} ({install})"),
            None => requirement.to_owned(),
        },
    }
}

/// A time as people say it: whole seconds, and the two largest units of it.
struct Roughly(Span);

impl std::fmt::Display for Roughly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = (self.0.0.max(0) + 999) / 1000;
        let parts = [
            (seconds / 86_400, "d"),
            (seconds / 3600 % 24, "h"),
            (seconds / 60 % 60, "m"),
            (seconds % 60, "s"),
        ];
        let from = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
        for (n, (count, unit)) in parts[from..].iter().take(2).enumerate() {
            let gap = if n == 0 { "" } else { " " };
            write!(f, "{gap}{count}{unit}")?;
        }
        Ok(())
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
            down: vec![("B".into(), "it ended with exit code 3".into())],
            turns_away: None,
        };
        assert!(agent.down("queue=x runner:b work:function").is_some());
        assert!(agent.down("queue=x runner:a work:function").is_none());
        assert!(agent.is_busy("runner:a work:function"));
        assert!(!agent.is_busy("runner:b work:function"));
        assert!(!agent.fits("runner:c work:function"));
        assert_eq!(agent.missing("runner:c work:function"), ["runner:c"]);
    }

    #[test]
    fn a_turn_says_who_has_it_and_who_comes_first() {
        let line = |held_by, ahead| Line {
            group: "production".into(),
            held_by,
            ahead,
        };
        let run = crate::RunId(1);
        let said = Why::WaitingForTurn(line(Some(run.job(0)), 2)).to_string();
        assert_eq!(
            said,
            format!(
                "waits for its turn in the group `production`, which {run} has; 2 others come first"
            )
        );
        let job = line(Some(run.job(3)), 0).to_string();
        assert!(job.ends_with(&format!("which {} has", run.job(3))), "{job}");
    }

    #[test]
    fn times_are_told_in_two_units() {
        let said = |span| Roughly(span).to_string();
        assert_eq!(said(Span(3_599_987)), "1h 0m");
        assert_eq!(said(Span(3_598_000)), "59m 58s");
        assert_eq!(said(Span(40)), "1s");
        assert_eq!(said(Span::ZERO), "0s");
        assert_eq!(said(Span::hours(49)), "2d 1h");
    }

    #[test]
    fn what_is_lacking_is_said_in_words_of_the_settings() {
        assert_eq!(lack("runner:py"), "runner:py");
        assert!(lack("unnamed=mail").starts_with("a runner for calls of the queue `mail`"));
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
