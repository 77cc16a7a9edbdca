//! The small requests: cancel, rerun, and tokens.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::fields::{Fields, Node, read_text};
use crate::invalid::{Invalid, Problems};
use crate::seconds::Seconds;
use crate::states::spelled;
use crate::time::Millis;

/// Bytes of a reason a person gives; what is beyond is cut off.
const MAX_REASON_BYTES: usize = 512;
/// Characters of a token's name.
const MAX_TOKEN_NAME: usize = 100;
/// Characters of a job's name or id.
const MAX_JOB: usize = 128;

/// `POST …/cancel`. An empty body says the same as `{}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CancelRequest {
    /// Shown wherever the cancel is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl CancelRequest {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let reason = p.note(f.may("reason", |it| it.cut(MAX_REASON_BYTES)));
            Some(CancelRequest { reason: reason? })
        })
    }
}

/// `POST /api/v1/runs/{id}/rerun`. An empty body says the same as `{}`: everything again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RerunRequest {
    /// Only the jobs that did not succeed, and those that need them.
    #[schema(required = false, default = false)]
    pub failed_only: bool,
    /// Only this job, by name or id, and those that need it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

impl RerunRequest {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let failed_only = p
                .note(f.may("failed_only", Node::boolean))?
                .unwrap_or(false);
            let job = p.note(f.may("job", |it| it.text(MAX_JOB)))?;
            if failed_only && job.is_some() {
                p.push(Invalid::field(
                    "job",
                    "is given beside failed_only; give one",
                ));
            }
            Some(RerunRequest { failed_only, job })
        })
    }
}

spelled! {
    /// What a token may do: a runner executes, a user starts and watches, an admin also hands out
    /// tokens.
    Role {
        Runner = "runner",
        User = "user",
        Admin = "admin",
    }
}

/// `POST /api/v1/tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CreateToken {
    pub role: Role,
    /// For people: who or what uses it.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<Seconds>,
}

impl CreateToken {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let role = p.note(f.must("role", role));
            let name = p.note(f.must("name", token_name));
            let expires = p.note(f.may("expires_in_seconds", Node::positive_seconds));
            Some(CreateToken {
                role: role?,
                name: name?,
                expires_in_seconds: expires?,
            })
        })
    }
}

fn role(node: Node<'_>) -> Result<Role, Invalid> {
    Role::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be `runner`, `user` or `admin`"))
}

fn token_name(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(MAX_TOKEN_NAME)?;
    if name.chars().any(char::is_control) {
        return Err(Invalid::here("must be printable"));
    }
    Ok(name)
}

/// A token as everybody may see it: never the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    pub token_id: String,
    pub name: String,
    pub role: Role,
    pub created_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Millis>,
}

/// The one time the secret is shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// The secret. Only its hash is kept.
    pub token: String,
    pub view: TokenView,
}

impl std::fmt::Debug for TokenCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenCreated")
            .field("view", &self.view)
            .finish_non_exhaustive()
    }
}

/// Reads an object strictly. A body of nothing is an object of nothing.
fn strict<T>(
    body: &[u8],
    read: impl FnOnce(&mut Fields<'_>, &mut Problems) -> Option<T>,
) -> Result<T, Problems> {
    let body = if body.trim_ascii().is_empty() {
        b"{}"
    } else {
        body
    };
    let mut problems = Problems::new();
    let outcome = read_text(body, |node| {
        let mut fields = node.object()?;
        let value = read(&mut fields, &mut problems);
        fields.refuse_unknown(&mut problems);
        Ok(value)
    });
    let value = problems.note(outcome).and_then(|(value, _)| value);
    value.filter(|_| problems.is_empty()).ok_or(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_body_asks_for_the_plain_thing() {
        assert_eq!(CancelRequest::parse(b""), Ok(CancelRequest::default()));
        assert_eq!(RerunRequest::parse(b" \n"), Ok(RerunRequest::default()));
    }

    // A71
    #[test]
    fn a_slip_is_answered_with_the_name_that_was_meant() {
        let problems = RerunRequest::parse(br#"{"failed":true,"jobb":"a"}"#).unwrap_err();
        assert!(
            problems
                .to_string()
                .contains("jobb: is not known; did you mean `job`?")
        );
        let problems = CreateToken::parse(br#"{"role":"root","nam":"x"}"#).unwrap_err();
        let places: Vec<&str> = problems.iter().map(Invalid::place).collect();
        assert_eq!(places, ["role", "name", "nam"]);
    }

    #[test]
    fn the_secret_of_a_token_stays_out_of_debug_output() {
        let view = TokenView {
            token_id: "tok_1".into(),
            name: "n".into(),
            role: Role::Runner,
            created_at: Millis(0),
            expires_at: None,
            revoked_at: None,
        };
        let created = TokenCreated {
            token: "s3cret".into(),
            view,
        };
        assert!(!format!("{created:?}").contains("s3cret"));
    }
}
