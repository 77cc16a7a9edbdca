//! The bodies of webhooks. GitHub's, Gitea's and Forgejo's have the same fields where we look; what
//! we do not look at is not read. Gitea and Forgejo say who somebody is twice.

use serde::Deserialize;

use crate::BadDelivery;
use crate::event::{Event, PullRequest, Push};
use crate::names::{Commit, Ref, is_none};

/// Characters of a name that is kept for people.
const MAX_NAME: usize = 255;

#[derive(Deserialize)]
struct Whose {
    repository: Repository,
}

#[derive(Deserialize)]
struct Repository {
    #[serde(default)]
    id: Option<u64>,
    full_name: String,
}

#[derive(Deserialize)]
struct Person {
    #[serde(default)]
    login: Option<String>,
    /// What some forges call the login, beside it or in its place.
    #[serde(default)]
    username: Option<String>,
}

#[derive(Deserialize)]
struct PushBody {
    #[serde(rename = "ref")]
    git_ref: String,
    before: String,
    after: String,
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    head_commit: Option<HeadCommit>,
    #[serde(default)]
    sender: Option<Person>,
}

#[derive(Deserialize)]
struct HeadCommit {
    id: String,
}

#[derive(Deserialize)]
struct PullBody {
    action: String,
    number: u64,
    pull_request: Pull,
    #[serde(default)]
    changes: Option<Changes>,
    #[serde(default)]
    sender: Option<Person>,
}

/// What was edited, as far as it matters: where the request is to go. GitHub calls that `base`,
/// Gitea `ref`.
#[derive(Deserialize)]
struct Changes {
    #[serde(default)]
    base: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "ref")]
    git_ref: Option<serde::de::IgnoredAny>,
}

impl Changes {
    fn is_of_target(&self) -> bool {
        self.base.is_some() || self.git_ref.is_some()
    }
}

#[derive(Deserialize)]
struct Pull {
    head: Side,
    base: Side,
}

#[derive(Deserialize)]
struct Side {
    #[serde(rename = "ref")]
    git_ref: String,
    sha: String,
    /// Null where the fork is gone.
    #[serde(default)]
    repo: Option<Repository>,
}

fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, BadDelivery> {
    // What serde says quotes no values of the body, only its shape.
    serde_json::from_slice(body).map_err(|error| BadDelivery::Body(error.to_string()))
}

/// Refuses what is about another repository: one address may get the deliveries of many.
pub fn check_repository(body: &[u8], wanted: &str) -> Result<(), BadDelivery> {
    let found = read::<Whose>(body)?.repository.full_name;
    if found.eq_ignore_ascii_case(wanted) {
        Ok(())
    } else {
        Err(BadDelivery::OtherRepository {
            found: short(&found),
            wanted: wanted.to_owned(),
        })
    }
}

pub fn push(body: &[u8]) -> Result<Event, BadDelivery> {
    let said: PushBody = read(body)?;
    let git_ref = match Ref::parse(&said.git_ref) {
        Ok(git_ref) => git_ref,
        // Notes and the like: neither a branch nor a tag.
        Err(_) if starts_elsewhere(&said.git_ref) => return Ok(other("push")),
        Err(why) => return Err(wrong("ref", why)),
    };
    if said.deleted || is_none(&said.after) {
        return Ok(Event::Deleted { git_ref });
    }
    let before = if is_none(&said.before) {
        None
    } else {
        Some(commit("before", &said.before)?)
    };
    let after = commit("after", &said.after)?;
    let tagged = said
        .head_commit
        .filter(|_| git_ref.is_tag())
        .map(|head_commit| commit("head_commit.id", &head_commit.id));
    Ok(Event::Push(Push {
        before,
        commit: tagged.transpose()?.unwrap_or_else(|| after.clone()),
        after,
        actor: actor(said.sender),
        git_ref,
    }))
}

fn starts_elsewhere(name: &str) -> bool {
    name.starts_with("refs/")
        && !["refs/heads/", "refs/tags/"]
            .iter()
            .any(|it| name.starts_with(it))
}

pub fn pull_request(body: &[u8]) -> Result<Event, BadDelivery> {
    let said: PullBody = read(body)?;
    match said.action.as_str() {
        // GitHub says synchronize, Gitea synchronized.
        "opened" | "reopened" | "synchronize" | "synchronized" => {}
        // With another target the same head is another question.
        "edited" if said.changes.is_some_and(|change| change.is_of_target()) => {}
        "closed" => {
            return Ok(Event::Closed {
                number: said.number,
            });
        }
        _ => return Ok(other("pull_request")),
    }
    let Pull { head, base } = said.pull_request;
    let branch = format!("refs/heads/{}", base.git_ref);
    Ok(Event::PullRequest(PullRequest {
        number: said.number,
        fork: is_fork(&head, &base),
        head: commit("pull_request.head.sha", &head.sha)?,
        head_branch: short(&head.git_ref),
        base: Ref::parse(&branch).map_err(|why| wrong("pull_request.base.ref", why))?,
        base_commit: Commit::parse(&base.sha).ok(),
        actor: actor(said.sender),
    }))
}

/// Only what is certainly a branch of the same repository is no fork. Gitea and Forgejo let
/// strangers push a request without a fork (AGit): such a head is in the repository, under
/// `refs/pull/`, and no branch that anybody here made. A branch's own name has no `refs/`.
fn is_fork(head: &Side, base: &Side) -> bool {
    if head.git_ref.starts_with("refs/") {
        return true;
    }
    let (Some(head), Some(base)) = (&head.repo, &base.repo) else {
        return true;
    };
    let same_name = head.full_name.eq_ignore_ascii_case(&base.full_name);
    let same_id = head.id.is_none() || base.id.is_none() || head.id == base.id;
    !(same_name && same_id)
}

pub fn other(name: &str) -> Event {
    Event::Other { name: short(name) }
}

fn actor(sender: Option<Person>) -> String {
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    let name = sender.and_then(|sender| said(sender.login).or_else(|| said(sender.username)));
    name.map_or_else(String::new, |name| short(&name))
}

/// For people: bounded, and nothing that moves a cursor.
fn short(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control());
    plain.take(MAX_NAME).collect()
}

fn commit(field: &str, text: &str) -> Result<Commit, BadDelivery> {
    Commit::parse(text).map_err(|why| wrong(field, why))
}

fn wrong(field: &str, why: crate::names::BadName) -> BadDelivery {
    BadDelivery::Body(format!("{field}: {why}"))
}
