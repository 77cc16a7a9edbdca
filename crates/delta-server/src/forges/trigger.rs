//! A delivery becomes a run that is to be planned, or nothing. A pure function: the same delivery
//! always means the same.
//!
//! Whether a run is trusted is decided here, from the verified event alone (T5, T19): what comes
//! from another repository is not, whoever sends it.

use std::collections::BTreeMap;

use delta_core::command::NewRun;
use delta_core::run::{RunHeader, Unique};
use delta_core::{Digest, Millis, RunId, Settings, Span, Text};
use delta_forge::{Delivery, Event, PullRequest, Push};
use delta_wire::api::{ForkPolicy, Trigger, TriggerEvent};

use super::Registered;
use crate::new_run::digest;
use crate::writer::sha256;

/// How long the same push is the same push (A45): so that A, B, A still runs three times.
pub const SAME_PUSH: Span = Span::minutes(10);
/// How long a run may wait for its plan, from when it was made: for its turn, for a clone over a
/// slow line, and then for the planner, which has the setting's time for itself.
pub const PLANNING: Span = Span::minutes(15);
/// How long a run waits for somebody to let it go on.
pub const APPROVAL: Span = Span::hours(7 * 24);

/// What a delivery means.
pub enum Meaning {
    Run(Box<NewRun>),
    /// No run comes of it; why.
    Nothing(String),
}

/// Where and when it was heard.
pub struct Heard<'h> {
    pub registered: &'h Registered,
    pub delivery: &'h Delivery,
    pub body: &'h [u8],
    pub at: Millis,
    /// A fresh one.
    pub id: RunId,
    pub settings: &'h Settings,
}

pub fn meaning(heard: &Heard<'_>) -> Meaning {
    match &heard.delivery.event {
        Event::Ping => nothing("pong"),
        Event::Deleted { git_ref } => nothing(&format!("{} is gone", git_ref.as_str())),
        Event::Closed { number } => nothing(&format!("request {number} is over")),
        Event::Other { name } => nothing(&format!("{name} starts nothing")),
        Event::Push(push) => Meaning::Run(Box::new(pushed(heard, push))),
        Event::PullRequest(request) => requested(heard, request),
    }
}

fn nothing(note: &str) -> Meaning {
    Meaning::Nothing(note.to_owned())
}

fn pushed(heard: &Heard<'_>, push: &Push) -> NewRun {
    let event = if push.git_ref.is_tag() {
        TriggerEvent::Tag
    } else {
        TriggerEvent::Push
    };
    let before = push.before.as_ref().map(|it| it.as_str());
    let trigger = Trigger {
        before: before.map(str::to_owned),
        ..plain(heard, event, &push.actor)
    };
    let parts = [
        "push",
        &heard.registered.row.name,
        push.git_ref.as_str(),
        before.unwrap_or_default(),
        push.after.as_str(),
    ];
    let unique = Unique {
        key: digest(&parts),
        until: heard.at + SAME_PUSH,
    };
    let mut new = new_run(heard, &trigger, true);
    new.header.git_ref = Some(push.git_ref.as_str().into());
    new.header.commit = Some(push.commit.as_str().into());
    new.header.unique = Some(unique);
    new
}

fn requested(heard: &Heard<'_>, request: &PullRequest) -> Meaning {
    let gated = request.fork && heard.registered.forks == ForkPolicy::Approve;
    if request.fork && heard.registered.forks == ForkPolicy::Ignore {
        return nothing("requests from other repositories are ignored");
    }
    let base = request.base.as_str();
    let base = base.strip_prefix("refs/heads/").unwrap_or(base);
    let base_commit = request.base_commit.as_ref();
    let trigger = Trigger {
        number: Some(request.number),
        base: Some(base.to_owned()),
        base_commit: base_commit.map(|it| it.as_str().to_owned()),
        source: Some(request.head_branch.clone()),
        fork: request.fork,
        gated,
        ..plain(heard, TriggerEvent::PullRequest, &request.actor)
    };
    let mut new = new_run(heard, &trigger, !request.fork);
    // In the repository it is addressed to: the fork's own address is a stranger's.
    let dialect = heard.registered.site.kind.dialect();
    new.header.git_ref = Some(dialect.pull_ref(request.number).into());
    new.header.commit = Some(request.head.as_str().into());
    if gated {
        new.header.planning_timeout = APPROVAL;
    }
    Meaning::Run(Box::new(new))
}

/// What somebody asks for by hand.
pub struct Asked<'a> {
    pub registered: &'a Registered,
    pub git_ref: &'a str,
    pub commit: &'a str,
    pub inputs: BTreeMap<String, String>,
    pub by: Text,
    pub idempotency: Option<(Digest, Digest)>,
    /// A fresh one.
    pub id: RunId,
    pub settings: &'a Settings,
}

/// A run that somebody of ours asks for: trusted, as a push is.
pub fn by_hand(asked: Asked<'_>) -> NewRun {
    let trigger = Trigger {
        inputs: asked.inputs,
        ..bare(asked.registered, TriggerEvent::Manual, &asked.by)
    };
    let header = RunHeader {
        git_ref: Some(asked.git_ref.into()),
        commit: Some(asked.commit.into()),
        created_by: asked.by,
        idempotency: asked.idempotency,
        ..header(asked.registered, asked.settings, &trigger, true)
    };
    NewRun {
        id: asked.id,
        header,
        jobs: None,
    }
}

fn plain(heard: &Heard<'_>, event: TriggerEvent, actor: &str) -> Trigger {
    bare(heard.registered, event, actor)
}

fn bare(registered: &Registered, event: TriggerEvent, actor: &str) -> Trigger {
    Trigger {
        repository: registered.row.name.to_string(),
        event,
        actor: actor.to_owned(),
        before: None,
        number: None,
        base: None,
        base_commit: None,
        source: None,
        fork: false,
        gated: false,
        inputs: BTreeMap::new(),
    }
}

fn new_run(heard: &Heard<'_>, trigger: &Trigger, trusted: bool) -> NewRun {
    let registered = heard.registered;
    let forge = registered.site.kind.name();
    let parts = ["delivery", forge, &registered.row.name, &heard.delivery.id];
    NewRun {
        id: heard.id,
        header: RunHeader {
            idempotency: Some((digest(&parts), sha256(heard.body))),
            created_by: format!("{forge}:{}", trigger.actor).into(),
            ..header(registered, heard.settings, trigger, trusted)
        },
        jobs: None,
    }
}

fn header(
    registered: &Registered,
    settings: &Settings,
    trigger: &Trigger,
    trusted: bool,
) -> RunHeader {
    RunHeader {
        repository: Some(registered.row.clone_url.clone()),
        trusted,
        needs_report: registered.has_listeners(),
        planning_timeout: Span(PLANNING.0.max(settings.planning_timeout.0)),
        trigger: Some(trigger.to_text().into()),
        ..RunHeader::plain(trigger.actor.as_str(), settings)
    }
}

#[cfg(test)]
mod tests {
    use delta_forge::{Commit, Ref};

    use super::*;

    fn registered(forks: &str) -> Registered {
        let about =
            format!(r#"{{"forge":"github","token":"T","forks":"{forks}","supersede":true}}"#);
        Registered::in_tests("https://github.com/team/app.git", &about)
    }

    fn run(forks: &str, id: &str, event: Event) -> Option<NewRun> {
        let heard = Heard {
            registered: &registered(forks),
            delivery: &Delivery {
                id: id.into(),
                event,
            },
            body: b"{}",
            at: Millis(1_000),
            id: RunId(7),
            settings: &Settings::recommended(),
        };
        match meaning(&heard) {
            Meaning::Run(new) => Some(*new),
            Meaning::Nothing(_) => None,
        }
    }

    fn commit(letter: &str) -> Commit {
        Commit::parse(&letter.repeat(40)).unwrap()
    }

    fn push(git_ref: &str, before: &str) -> Event {
        Event::Push(Push {
            git_ref: Ref::parse(git_ref).unwrap(),
            before: Some(commit(before)),
            after: commit("b"),
            commit: commit("c"),
            actor: "octocat".into(),
        })
    }

    fn request(fork: bool) -> Event {
        Event::PullRequest(PullRequest {
            number: 7,
            head: commit("d"),
            head_branch: "main".into(),
            base: Ref::parse("refs/heads/main").unwrap(),
            base_commit: None,
            fork,
            actor: "stranger".into(),
        })
    }

    #[test]
    fn a_push_is_trusted_and_known_by_its_delivery_and_by_itself() {
        // A45
        let new = run("approve", "d1", push("refs/heads/main", "a")).unwrap();
        let header = &new.header;
        assert!(new.jobs.is_none() && header.trusted && header.needs_report);
        assert_eq!(header.commit.as_deref(), Some(&*"c".repeat(40)));
        assert_eq!(&*header.created_by, "github:octocat");
        let other = |id: &str, git_ref: &str, before: &str| {
            run("approve", id, push(git_ref, before)).unwrap().header
        };
        let again = other("d2", "refs/heads/main", "a");
        assert_ne!(again.idempotency.unwrap().0, header.idempotency.unwrap().0);
        assert_eq!(again.unique.unwrap().key, header.unique.unwrap().key);
        for (git_ref, before) in [("refs/heads/main", "e"), ("refs/heads/x", "a")] {
            let moved = other("d1", git_ref, before);
            assert_ne!(moved.unique.unwrap().key, header.unique.unwrap().key);
        }
        let tag = run("approve", "d1", push("refs/tags/v1", "a")).unwrap();
        let tag = Trigger::from_text(&tag.header.trigger.unwrap()).unwrap();
        assert_eq!(tag.event, TriggerEvent::Tag);
    }

    #[test]
    fn a_request_from_elsewhere_is_never_trusted_and_waits_by_policy() {
        // T5
        let own = run("approve", "d1", request(false)).unwrap().header;
        assert!(own.trusted && own.unique.is_none());
        assert_eq!(own.git_ref.as_deref(), Some("refs/pull/7/head"));
        assert_eq!(
            own.repository.as_deref(),
            Some("https://github.com/team/app.git")
        );
        for (policy, gated) in [("approve", true), ("run", false)] {
            let fork = run(policy, "d1", request(true)).unwrap().header;
            assert!(!fork.trusted);
            let trigger = Trigger::from_text(fork.trigger.as_deref().unwrap()).unwrap();
            assert_eq!((trigger.fork, trigger.gated), (true, gated));
            assert_eq!(fork.planning_timeout == APPROVAL, gated);
        }
        assert!(run("ignore", "d1", request(true)).is_none());
        assert!(run("ignore", "d1", request(false)).is_some());
    }

    #[test]
    fn everything_else_starts_nothing() {
        let git_ref = Ref::parse("refs/heads/x").unwrap();
        for event in [
            Event::Ping,
            Event::Deleted { git_ref },
            Event::Closed { number: 7 },
            Event::Other {
                name: "star".into(),
            },
        ] {
            assert!(run("run", "d1", event).is_none());
        }
    }
}
