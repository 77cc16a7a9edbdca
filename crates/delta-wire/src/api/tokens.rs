//! Credentials: how they are asked for, shown, and exchanged. A secret is in an answer once, and in
//! no `Debug` output.

use delta_core::requirement::Requirement;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::requests::strict;
use crate::fields::Node;
use crate::invalid::{Invalid, Problems};
use crate::seconds::Seconds;
use crate::states::spelled;
use crate::time::Millis;

/// Characters of a token's or an agent's name.
pub(crate) const MAX_NAME: usize = 100;
/// Characters of what a certificate names: as much as a host name can have.
pub(crate) const MAX_IDENTITY: usize = 255;
/// Zones or labels of one credential: a machine has a handful.
pub(crate) const MAX_WORDS: usize = 64;
/// How long an enrolment is good for at most: it travels over chats and shells, so it should be
/// worthless soon.
pub const LONGEST_ENROLMENT: Seconds = Seconds::from_secs(24 * 3600);
/// Any label, where one is named.
pub const ANY_LABEL: &str = "*";

spelled! {
    /// What a token may do: a runner executes, a user starts and watches, an admin also hands out
    /// tokens, and an enrolment lets one agent in, once.
    Role {
        Runner = "runner",
        User = "user",
        Admin = "admin",
        Enrolment = "enrolment",
    }
}

impl Role {
    /// Whether it is about agents, so that a pool, zones and labels mean something.
    pub fn is_for_agents(self) -> bool {
        matches!(self, Role::Runner | Role::Enrolment)
    }
}

/// `POST /api/v1/tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CreateToken {
    pub role: Role,
    /// For people: who or what uses it.
    pub name: String,
    /// For good when absent; an enrolment is good for an hour, and for a day at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<Seconds>,
    /// The pool its agents belong to; `default` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The zones its agents may claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub zones: Vec<String>,
    /// The labels its agents may claim; `["*"]` is any. When absent, any for a runner token and
    /// none for everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<Vec<String>>,
    /// The one agent that may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// No token: what is granted to whoever comes with a certificate of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

impl CreateToken {
    /// Of this role and name, and nothing else said.
    pub fn plain(role: Role, name: String) -> CreateToken {
        CreateToken {
            role,
            name,
            expires_in_seconds: None,
            pool: None,
            zones: Vec::new(),
            labels: None,
            agent_id: None,
            certificate: None,
        }
    }

    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let role = p.note(f.must("role", role));
            let name = p.note(f.must("name", name));
            let expires = p.note(f.may("expires_in_seconds", Node::positive_seconds));
            let pool = p.note(f.may("pool", word));
            let zones = p.note(f.may("zones", |it| it.each(MAX_WORDS, word)));
            let labels = p.note(f.may("labels", |it| it.each(MAX_WORDS, label)));
            let agent_id = p.note(f.may("agent_id", agent_id));
            let certificate = p.note(f.may("certificate", identity));
            let request = CreateToken {
                role: role?,
                name: name?,
                expires_in_seconds: expires?,
                pool: pool?,
                zones: zones?.unwrap_or_default(),
                labels: labels?,
                agent_id: agent_id?,
                certificate: certificate?,
            };
            request.contradictions().for_each(|it| p.push(it));
            Some(request)
        })
    }

    fn contradictions(&self) -> impl Iterator<Item = Invalid> {
        let scoped = [
            ("pool", self.pool.is_some()),
            ("zones", !self.zones.is_empty()),
            ("labels", self.labels.is_some()),
        ];
        let agents = self.role.is_for_agents();
        let scoped = scoped
            .into_iter()
            .filter(move |(_, given)| *given && !agents)
            .map(|(name, _)| Invalid::field(name, "is for the roles runner and enrolment"));
        let runners = [
            ("agent_id", self.agent_id.is_some()),
            ("certificate", self.certificate.is_some()),
        ];
        let runner = self.role == Role::Runner;
        let runners = runners
            .into_iter()
            .filter(move |(_, given)| *given && !runner)
            .map(|(name, _)| Invalid::field(name, "is for the role runner"));
        let too_long = self.expires_in_seconds > Some(LONGEST_ENROLMENT);
        let too_long = (too_long && self.role == Role::Enrolment).then(|| {
            let words = "an enrolment is good for a day at most";
            Invalid::field("expires_in_seconds", words)
        });
        scoped.chain(runners).chain(too_long)
    }
}

fn role(node: Node<'_>) -> Result<Role, Invalid> {
    Role::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be `runner`, `user`, `admin` or `enrolment`"))
}

fn name(node: Node<'_>) -> Result<String, Invalid> {
    printable(node.text(MAX_NAME)?)
}

/// A name as a certificate spells it: a URI, a host name or a common name.
fn identity(node: Node<'_>) -> Result<String, Invalid> {
    printable(node.text(MAX_IDENTITY)?)
}

fn printable(text: String) -> Result<String, Invalid> {
    if text.chars().any(char::is_control) {
        return Err(Invalid::here("must be printable"));
    }
    Ok(text)
}

/// The longest id of an agent, and of one of its processes.
pub const MAX_AGENT_ID: usize = 128;

/// The id of an agent: no slash, since `AGENT/1` is a slot of it.
pub fn is_agent_id(text: &str) -> bool {
    let fit = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    (1..=MAX_AGENT_ID).contains(&text.len()) && text.chars().all(fit)
}

fn agent_id(node: Node<'_>) -> Result<String, Invalid> {
    let text = node.text(MAX_NAME)?;
    if is_agent_id(&text) {
        Ok(text)
    } else {
        Err(Invalid::here(format!(
            "must be at most {MAX_AGENT_ID} letters, digits and . _ - :"
        )))
    }
}

/// A pool or a zone: what can stand in `zone=…` of a requirement.
pub fn is_word(text: &str) -> bool {
    matches!(Requirement::parse(text), Ok(Requirement::Has(_)))
}

/// A label: `gpu`, or `team=blue`.
pub fn is_label(text: &str) -> bool {
    let parsed = Requirement::parse(text);
    matches!(parsed, Ok(Requirement::Has(_) | Requirement::Is(..)))
}

fn word(node: Node<'_>) -> Result<String, Invalid> {
    let text = node.text(MAX_NAME)?;
    if is_word(&text) {
        Ok(text)
    } else {
        Err(Invalid::here("must be letters, digits and . _ - : /"))
    }
}

fn label(node: Node<'_>) -> Result<String, Invalid> {
    let text = node.text(MAX_NAME)?;
    if text == ANY_LABEL || is_label(&text) {
        Ok(text)
    } else {
        Err(Invalid::here("must be a word such as gpu or team=blue"))
    }
}

/// A credential as everybody may see it: never the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// `tok_…`; of somebody without a token `cert:NAME` or `oidc:ISSUER:SUBJECT`.
    pub token_id: String,
    pub name: String,
    pub role: Role,
    pub created_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Millis>,
    /// What it grants, where it is about agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub zones: Vec<String>,
    /// `["*"]` is any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub labels: Vec<String>,
    /// The one agent that may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Of an enrolment: when it was used, for which agent, and when it was last shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused_at: Option<Millis>,
}

/// The one time the secret is shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// The secret. Only its hash is kept. Absent where a certificate takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    pub view: TokenView,
}

impl std::fmt::Debug for TokenCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenCreated")
            .field("view", &self.view)
            .finish_non_exhaustive()
    }
}

/// `POST /api/v1/agents/enroll`, with the enrolment token as bearer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct EnrolAgent {
    /// What people call the machine; the agent's id begins with it.
    pub agent_name: String,
}

impl EnrolAgent {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let agent_name = p.note(f.must("agent_name", agent_id));
            Some(EnrolAgent {
                agent_name: agent_name?,
            })
        })
    }
}

/// The agent's own credential: the one time its secret is shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentEnrolled {
    /// The only id this credential may be used with.
    pub agent_id: String,
    /// The secret.
    pub token: String,
    pub token_id: String,
    pub pool: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub zones: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub labels: Vec<String>,
}

impl std::fmt::Debug for AgentEnrolled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentEnrolled")
            .field("agent_id", &self.agent_id)
            .field("token_id", &self.token_id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(body: &str) -> Vec<String> {
        let problems = CreateToken::parse(body.as_bytes()).unwrap_err();
        problems.iter().map(|it| it.place().to_owned()).collect()
    }

    // A71
    #[test]
    fn a_slip_is_answered_with_its_place() {
        assert_eq!(
            places(r#"{"role":"root","nam":"x"}"#),
            ["role", "name", "nam"]
        );
        let bad = r#"{"role":"runner","name":"x","zones":["eu","u s"],"labels":["a>=1"]}"#;
        assert_eq!(places(bad), ["zones[1]", "labels[0]"]);
    }

    #[test]
    fn what_a_role_cannot_have_is_refused() {
        let user = r#"{"role":"user","name":"x","pool":"p","zones":["eu"],"labels":[],
            "agent_id":"a","certificate":"c"}"#;
        assert_eq!(
            places(user),
            ["pool", "zones", "labels", "agent_id", "certificate"]
        );
        let enrolment = r#"{"role":"enrolment","name":"x","pool":"p","agent_id":"a"}"#;
        assert_eq!(places(enrolment), ["agent_id"]);
    }

    #[test]
    fn what_is_sent_is_read() {
        let sent = CreateToken {
            pool: Some("gpu".into()),
            zones: vec!["eu".into()],
            labels: Some(vec!["*".into(), "team=blue".into()]),
            agent_id: Some("a-1".into()),
            certificate: Some("spiffe://ci.example/agent/1".into()),
            ..CreateToken::plain(Role::Runner, "n".into())
        };
        let body = serde_json::to_vec(&sent).unwrap();
        assert_eq!(CreateToken::parse(&body), Ok(sent));
    }

    #[test]
    fn secrets_stay_out_of_debug_output() {
        let view = TokenView {
            token_id: "tok_1".into(),
            name: "n".into(),
            role: Role::Runner,
            created_at: Millis(0),
            expires_at: None,
            revoked_at: None,
            pool: None,
            zones: Vec::new(),
            labels: Vec::new(),
            agent_id: None,
            used_at: None,
            used_by: None,
            reused_at: None,
        };
        let created = TokenCreated {
            token: Some("s3cret".into()),
            view,
        };
        assert!(!format!("{created:?}").contains("s3cret"));
        let enrolled = AgentEnrolled {
            agent_id: "a".into(),
            token: "s3cret".into(),
            token_id: "tok_2".into(),
            pool: "default".into(),
            zones: Vec::new(),
            labels: Vec::new(),
        };
        assert!(!format!("{enrolled:?}").contains("s3cret"));
    }
}
