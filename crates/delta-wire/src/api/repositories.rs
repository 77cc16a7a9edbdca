//! Repositories that people register, what a webhook is answered, and what is known of a trigger.
//! A webhook's secret is in the request that sets it, and in nothing else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::create_run::MAX_SOURCE;
use super::requests::strict;
use crate::fields::Node;
use crate::invalid::{Invalid, Problems};
use crate::job_spec::secret_name;
use crate::states::spelled;
use crate::time::Millis;

/// Characters of a repository's name: it is a part of an address.
pub const MAX_REPOSITORY_NAME: usize = 64;
/// Characters a webhook's secret must have: one that can be guessed signs for anybody (T18).
pub(crate) const MIN_WEBHOOK_SECRET: usize = 16;
pub(crate) const MAX_WEBHOOK_SECRET: usize = 1024;
/// Inputs of one run, and characters of a name and of a value.
pub(crate) const MAX_INPUTS: usize = 50;
pub(crate) const MAX_INPUT_NAME: usize = 64;
pub(crate) const MAX_INPUT: usize = 4096;

spelled! {
    /// Which forge it is at.
    ForgeName {
        Github = "github",
        Gitea = "gitea",
        Forgejo = "forgejo",
    }
}

spelled! {
    /// What becomes of requests that come from other people's repositories. They never get secrets.
    ForkPolicy {
        Approve = "approve",
        Run = "run",
        Ignore = "ignore",
    }
}

/// `POST /api/v1/repositories`: made, or changed. What is absent is as it usually is in a new one,
/// and stays as it was in one that is there; only what is told from the clone address and the forge
/// is told anew when those change.
#[derive(Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PutRepository {
    /// Small letters, digits, `-`, `_` and `.`: a part of the webhook's address.
    #[schema(example = "app")]
    pub name: String,
    /// What agents and the planner clone.
    pub clone_url: String,
    pub forge: ForgeName,
    /// The API of the forge; told from the clone address when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// `OWNER/NAME` at the forge; told from the clone address when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The secret whose value may write statuses; without it none are published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The secret that the repository is cloned with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// What the forge signs its deliveries with. May be left out when a repository is replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_secret: Option<String>,
    /// `approve` in a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forks: Option<ForkPolicy>,
    /// Whether a newer run of a pull request ends the older ones; it does in a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supersede: Option<bool>,
    /// Who is told about the end of each run, by a signed webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify_url: Option<String>,
    /// The secret that it is signed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify_secret: Option<String>,
}

impl std::fmt::Debug for PutRepository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PutRepository")
            .field("name", &self.name)
            .field("clone_url", &self.clone_url)
            .finish_non_exhaustive()
    }
}

impl PutRepository {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let name = p.note(f.must("name", repository_name));
            let clone_url = p.note(f.must("clone_url", address));
            let forge = p.note(f.must("forge", forge));
            let api = p.note(f.may("api", address));
            let project = p.note(f.may("project", |it| it.text(MAX_SOURCE)));
            let token = p.note(f.may("token", secret_name));
            let credential = p.note(f.may("credential", secret_name));
            let webhook_secret = p.note(f.may("webhook_secret", webhook_secret));
            let forks = p.note(f.may("forks", forks));
            let supersede = p.note(f.may("supersede", Node::boolean));
            let notify_url = p.note(f.may("notify_url", address));
            let notify_secret = p.note(f.may("notify_secret", secret_name));
            let request = PutRepository {
                name: name?,
                clone_url: clone_url?,
                forge: forge?,
                api: api?,
                project: project?,
                token: token?,
                credential: credential?,
                webhook_secret: webhook_secret?,
                forks: forks?,
                supersede: supersede?,
                notify_url: notify_url?,
                notify_secret: notify_secret?,
            };
            if request.notify_url.is_some() != request.notify_secret.is_some() {
                let words = "goes together with notify_url: what is not signed is not believed";
                p.push(Invalid::field("notify_secret", words));
            }
            Some(request)
        })
    }
}

fn repository_name(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(MAX_REPOSITORY_NAME)?;
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if begins && name.chars().all(good) {
        Ok(name)
    } else {
        Err(Invalid::here(
            "must be small letters, digits, `-`, `_` and `.`, and begin with one of the first two",
        ))
    }
}

fn address(node: Node<'_>) -> Result<String, Invalid> {
    let text = node.text(MAX_SOURCE)?;
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(Invalid::here("must be printable, without spaces"));
    }
    let user = text.split_once("://").map_or("", |(_, rest)| rest);
    let user = user.split(['/', '?', '#']).next().unwrap_or_default();
    match user
        .rsplit_once('@')
        .is_some_and(|(it, _)| it.contains(':'))
    {
        true => Err(Invalid::here("holds a password; name a secret instead")),
        false => Ok(text),
    }
}

fn forge(node: Node<'_>) -> Result<ForgeName, Invalid> {
    ForgeName::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be `github`, `gitea` or `forgejo`"))
}

fn forks(node: Node<'_>) -> Result<ForkPolicy, Invalid> {
    ForkPolicy::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be `approve`, `run` or `ignore`"))
}

/// What no message repeats.
fn webhook_secret(node: Node<'_>) -> Result<String, Invalid> {
    let value = node.string()?;
    if (MIN_WEBHOOK_SECRET..=MAX_WEBHOOK_SECRET).contains(&value.chars().count()) {
        Ok(value)
    } else {
        Err(Invalid::here(format!(
            "must have {MIN_WEBHOOK_SECRET} to {MAX_WEBHOOK_SECRET} characters"
        )))
    }
}

/// A repository as people are shown it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepositoryView {
    pub name: String,
    pub clone_url: String,
    pub forge: ForgeName,
    pub api: String,
    pub project: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    pub forks: ForkPolicy,
    pub supersede: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify_secret: Option<String>,
    /// Where the forge delivers to, below this server's address.
    pub webhook_path: String,
    /// Where the forge delivers to, with the server's address where it knows its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    /// What will not work as it is, such as a secret that is named and not set. Said when it is
    /// registered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    pub created_at: Millis,
    pub updated_at: Millis,
    pub updated_by: String,
}

/// `POST /api/v1/repositories/{name}/runs`: plan what a ref is now, and run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TriggerRun {
    /// A branch, or a whole ref such as `refs/tags/v1`.
    #[serde(rename = "ref")]
    #[schema(example = "main")]
    pub git_ref: String,
    /// Values for what the pipeline file declares under `on: {manual: {inputs: …}}`.
    #[schema(required = false)]
    pub inputs: BTreeMap<String, String>,
}

impl TriggerRun {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let git_ref = p.note(f.must("ref", |it| it.text(MAX_SOURCE)));
            let inputs = p.note(f.may("inputs", inputs));
            Some(TriggerRun {
                git_ref: git_ref?,
                inputs: inputs?.unwrap_or_default(),
            })
        })
    }
}

/// Names and values as somebody typed them; the pipeline file says which it takes.
fn inputs(node: Node<'_>) -> Result<BTreeMap<String, String>, Invalid> {
    let fields = node.object()?;
    if fields.len() > MAX_INPUTS {
        return Err(Invalid::here(format!("has more than {MAX_INPUTS} entries")));
    }
    let mut inputs = BTreeMap::new();
    for (name, value) in fields.entries() {
        if name.is_empty() || name.chars().count() > MAX_INPUT_NAME {
            return Err(Invalid::here(format!(
                "has a name of not 1 to {MAX_INPUT_NAME} characters"
            )));
        }
        let value = value.string().map_err(|it| it.within(name))?;
        if value.chars().count() > MAX_INPUT {
            let why = format!("has more than {MAX_INPUT} characters");
            return Err(Invalid::here(why).within(name));
        }
        inputs.insert(name.to_owned(), value);
    }
    Ok(inputs)
}

/// What a webhook is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryView {
    /// The run that the delivery made, now or before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// An earlier delivery had made it.
    #[serde(default)]
    pub replayed: bool,
    /// Why nothing runs, where nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

spelled! {
    /// What happened.
    TriggerEvent {
        Push = "push",
        Tag = "tag",
        PullRequest = "pull_request",
        Manual = "manual",
    }
}

/// What is known of what triggered a run: facts of a verified delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trigger {
    /// The repository, by the name it was registered with.
    pub repository: String,
    pub event: TriggerEvent,
    pub actor: String,
    /// Of a push: where the branch was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Of a pull request: its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Of a pull request: the branch it wants to go to, and where that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_commit: Option<String>,
    /// Of a pull request: the branch it comes from, by whatever name its author gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// It comes from somebody else's repository.
    #[serde(default)]
    pub fork: bool,
    /// Somebody must let it go on first.
    #[serde(default)]
    pub gated: bool,
    /// Of one that somebody asked for: values for the inputs that the pipeline file declares.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
}

impl Trigger {
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn from_text(text: &str) -> Option<Trigger> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &str) -> Result<PutRepository, Problems> {
        let body = format!(
            r#"{{"name":"app","clone_url":"https://x.example/a/b.git","forge":"gitea"{more}}}"#
        );
        PutRepository::parse(body.as_bytes())
    }

    #[test]
    fn a_repository_needs_little() {
        let it = parse("").unwrap();
        assert_eq!((it.forks, it.supersede), (None, None));
        let it = parse(r#","forks":"run","supersede":false,"token":"STATUS_TOKEN""#).unwrap();
        assert_eq!(it.token.as_deref(), Some("STATUS_TOKEN"));
    }

    #[test]
    fn what_is_wrong_is_named_and_no_secret_repeated() {
        // A71, T18
        for (more, place) in [
            (r#","webhook_secret":"short""#, "webhook_secret"),
            (r#","api":"https://u:hunter2@x.example/""#, "api"),
            (r#","forks":"trust""#, "forks"),
            (r#","notify_url":"https://x.example/""#, "notify_secret"),
            (r#","webhook_secrets":"x""#, "webhook_secret"),
        ] {
            let problems = parse(more).unwrap_err().to_string();
            assert!(problems.contains(place), "{problems}");
            assert!(!problems.contains("hunter2"), "{problems}");
        }
        for name in ["", "../x", "A", "-x", "a/b", "a b"] {
            let body = format!(
                r#"{{"name":"{name}","clone_url":"https://x.example/a/b","forge":"gitea"}}"#
            );
            assert!(PutRepository::parse(body.as_bytes()).is_err(), "{name}");
        }
    }

    #[test]
    fn a_trigger_reads_back() {
        let trigger = Trigger {
            repository: "app".into(),
            event: TriggerEvent::PullRequest,
            actor: "stranger".into(),
            before: None,
            number: Some(7),
            base: Some("main".into()),
            base_commit: None,
            source: Some("$(id)".into()),
            fork: true,
            gated: true,
            inputs: BTreeMap::new(),
        };
        assert_eq!(Trigger::from_text(&trigger.to_text()), Some(trigger));
        assert_eq!(Trigger::from_text("{}"), None);
    }
}
