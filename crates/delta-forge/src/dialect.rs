//! The seam: what one forge does differently from another.
//!
//! A new forge is a variant of [`Kind`] and a [`Dialect`]. GitLab fits here too: its deliveries
//! carry a token instead of a signature, its merge requests are pull requests under another name,
//! its projects lie in groups of any depth, and its statuses have another address and other words.
//! All of that is the dialect's to say.

use reqwest::header::{HeaderMap, HeaderValue};

use crate::BadDelivery;
use crate::event::Event;
use crate::payload;
use crate::signature::{Secret, may_be_signature};
use crate::status::{State, Status};

/// The forges there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    GitHub,
    Gitea,
    Forgejo,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::GitHub, Kind::Gitea, Kind::Forgejo];

    pub fn name(self) -> &'static str {
        match self {
            Kind::GitHub => "github",
            Kind::Gitea => "gitea",
            Kind::Forgejo => "forgejo",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub fn dialect(self) -> &'static dyn Dialect {
        match self {
            Kind::GitHub => &GitHub,
            Kind::Gitea => &Gitea {
                signature: "x-gitea-signature",
                delivery: "x-gitea-delivery",
                event: "x-gitea-event",
            },
            Kind::Forgejo => &Gitea {
                signature: "x-forgejo-signature",
                delivery: "x-forgejo-delivery",
                event: "x-forgejo-event",
            },
        }
    }
}

/// How one forge spells things.
pub trait Dialect: Send + Sync {
    /// Whether the sender of these bytes knows the secret.
    fn is_signed(&self, headers: &HeaderMap, body: &[u8], secret: &Secret) -> bool;
    /// Whether there is anything to judge: what has nothing that could be a signature is refused
    /// before it is read.
    fn has_signature(&self, headers: &HeaderMap) -> bool;
    fn delivery_header(&self) -> &'static str;
    fn event_header(&self) -> &'static str;
    /// What a body under this name means.
    fn event(&self, name: &str, body: &[u8], wanted: &str) -> Result<Event, BadDelivery> {
        if name == "ping" {
            return Ok(Event::Ping);
        }
        payload::check_repository(body, wanted)?;
        match name {
            "push" => payload::push(body),
            "pull_request" | "pull_request_sync" => payload::pull_request(body),
            other => Ok(payload::other(other)),
        }
    }
    /// Where the API of a forge with this clone address is, path included.
    fn usual_api(&self, scheme: &str, host: &str) -> String;
    /// How a token is shown.
    fn authorization(&self, token: &Secret) -> Option<HeaderValue>;
    fn state(&self, state: State) -> &'static str;
    /// The project that a clone address of this path is of; none where that cannot be told.
    fn project_of(&self, path: &str) -> Option<String> {
        let mut names = path.rsplit('/');
        let (name, owner) = (names.next()?, names.next()?);
        Some(format!("{owner}/{name}"))
    }
    /// Whether a project has so many parts.
    fn takes_parts(&self, count: usize) -> bool {
        count == 2
    }
    /// Where a status of a commit is posted to, below the API's address.
    fn posted_to<'p>(&self, project: &'p str, commit: &'p str) -> Vec<&'p str> {
        let names = ["repos"].into_iter().chain(project.split('/'));
        names.chain(["statuses", commit]).collect()
    }
    /// Where the statuses of a commit are listed, newest first.
    fn listed_at<'p>(&self, project: &'p str, commit: &'p str) -> Vec<&'p str> {
        let names = ["repos"].into_iter().chain(project.split('/'));
        names.chain(["commits", commit, "statuses"]).collect()
    }
    /// A status as it is posted.
    fn body(&self, status: &Status) -> serde_json::Value {
        let mut body = serde_json::json!({
            "state": self.state(status.state),
            "context": status.context,
            "description": status.description,
        });
        if let Some(link) = &status.link {
            body["target_url"] = link.as_str().into();
        }
        body
    }
    /// Parameters of the list of statuses, for pages of at most this many.
    fn page_size(&self) -> (&'static str, usize);
    /// The ref under which a request's head is found in the repository it is addressed to.
    fn pull_ref(&self, number: u64) -> String {
        format!("refs/pull/{number}/head")
    }
}

fn sensitive(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

struct GitHub;

/// GitHub also sends a signature by SHA-1: it is not looked at.
const SIGNED_256: &str = "x-hub-signature-256";

impl Dialect for GitHub {
    fn is_signed(&self, headers: &HeaderMap, body: &[u8], secret: &Secret) -> bool {
        let hex = header(headers, SIGNED_256).and_then(|header| header.strip_prefix("sha256="));
        hex.is_some_and(|hex| secret.verifies(body, hex))
    }

    fn has_signature(&self, headers: &HeaderMap) -> bool {
        let hex = header(headers, SIGNED_256).and_then(|header| header.strip_prefix("sha256="));
        hex.is_some_and(may_be_signature)
    }

    fn delivery_header(&self) -> &'static str {
        "x-github-delivery"
    }

    fn event_header(&self) -> &'static str {
        "x-github-event"
    }

    fn usual_api(&self, scheme: &str, host: &str) -> String {
        match host {
            "github.com" => "https://api.github.com".to_owned(),
            _ => format!("{scheme}://{host}/api/v3"),
        }
    }

    fn authorization(&self, token: &Secret) -> Option<HeaderValue> {
        sensitive(format!("Bearer {}", token.expose()))
    }

    fn state(&self, state: State) -> &'static str {
        state.name()
    }

    fn page_size(&self) -> (&'static str, usize) {
        ("per_page", 100)
    }
}

/// Forgejo began as Gitea and renamed the headers.
struct Gitea {
    signature: &'static str,
    delivery: &'static str,
    event: &'static str,
}

impl Dialect for Gitea {
    fn is_signed(&self, headers: &HeaderMap, body: &[u8], secret: &Secret) -> bool {
        let hex = header(headers, self.signature);
        hex.is_some_and(|hex| secret.verifies(body, hex))
    }

    fn has_signature(&self, headers: &HeaderMap) -> bool {
        header(headers, self.signature).is_some_and(may_be_signature)
    }

    fn delivery_header(&self) -> &'static str {
        self.delivery
    }

    fn event_header(&self) -> &'static str {
        self.event
    }

    fn usual_api(&self, scheme: &str, host: &str) -> String {
        format!("{scheme}://{host}/api/v1")
    }

    fn authorization(&self, token: &Secret) -> Option<HeaderValue> {
        sensitive(format!("token {}", token.expose()))
    }

    fn state(&self, state: State) -> &'static str {
        state.name()
    }

    fn page_size(&self) -> (&'static str, usize) {
        // Its usual limit; a larger wish is cut without a word.
        ("limit", 50)
    }
}
