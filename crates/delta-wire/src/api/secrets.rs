//! Secrets: how they are set, shown without their values, and handed to the holder of a lease. A
//! value is in a request to set it and in the answer to a lease, and in no `Debug` output.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::create_run::MAX_SOURCE;
use super::requests::strict;
use crate::fields::Node;
use crate::invalid::{Invalid, Problems};
use crate::job_spec::{MAX_ENV_VALUE_BYTES, MAX_SECRETS, environment_name, secret_name};
use crate::states::spelled;
use crate::time::Millis;

/// Bytes a value must have at least: what is shorter cannot be masked in a log without masking
/// words that only look like it.
pub const MIN_SECRET_BYTES: usize = 6;
/// Bytes of a value: one variable of a process.
pub const MAX_SECRET_BYTES: usize = MAX_ENV_VALUE_BYTES;
/// Bytes of the host keys that belong to an SSH key.
pub(crate) const MAX_KNOWN_HOSTS_BYTES: usize = 64 * 1024;
/// Characters of the name a token goes with.
pub(crate) const MAX_USERNAME: usize = 255;

spelled! {
    /// What the value of a secret is.
    SecretKind {
        Plain = "plain",
        Token = "token",
        SshKey = "ssh-key",
    }
}

/// `POST /api/v1/secrets`: made, or replaced.
#[derive(Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SetSecret {
    /// Letters, digits and `_`: it is a variable of the job.
    #[schema(example = "DEPLOY_TOKEN")]
    pub name: String,
    /// 6 bytes to 64 KiB.
    pub value: String,
    /// Only for runs of this repository; for all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Only for runs of this branch, without `refs/heads/`; for all when absent. Runs of tags and
    /// of pull requests are of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Only for jobs of this environment; for all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    #[schema(required = false)]
    pub kind: SecretKind,
    /// Who the token belongs to, where the other side asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The host keys that are believed, as in a `known_hosts` file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_hosts: Option<String>,
}

impl std::fmt::Debug for SetSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetSecret")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl SetSecret {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let name = p.note(f.must("name", secret_name));
            let value = p.note(f.must("value", value));
            let repository = p.note(f.may("repository", repository));
            let branch = p.note(f.may("branch", branch));
            let environment = p.note(f.may("environment", environment_name));
            let kind = p.note(f.may("kind", kind));
            let username = p.note(f.may("username", username));
            let known_hosts = p.note(f.may("known_hosts", known_hosts));
            let request = SetSecret {
                name: name?,
                value: value?,
                repository: repository?,
                branch: branch?,
                environment: environment?,
                kind: kind?.unwrap_or(SecretKind::Plain),
                username: username?,
                known_hosts: known_hosts?,
            };
            request.contradictions().for_each(|it| p.push(it));
            Some(request)
        })
    }

    fn contradictions(&self) -> impl Iterator<Item = Invalid> {
        let ssh = self.kind == SecretKind::SshKey;
        let for_token = self.username.is_some() && self.kind != SecretKind::Token;
        let problems = [
            for_token.then(|| Invalid::field("username", "is for the kind token")),
            (self.known_hosts.is_some() && !ssh)
                .then(|| Invalid::field("known_hosts", "is for the kind ssh-key")),
            (self.known_hosts.is_none() && ssh).then(|| {
                let words = "is missing: a key is only shown to hosts that are known";
                Invalid::field("known_hosts", words)
            }),
            (ssh && !self.value.contains("PRIVATE KEY-----")).then(|| {
                Invalid::field("value", "is no private key in PEM or in OpenSSH's own form")
            }),
            (self.kind == SecretKind::Token && self.value.contains(char::is_whitespace))
                .then(|| Invalid::field("value", "is no token: it has spaces or several lines")),
        ];
        problems.into_iter().flatten()
    }
}

/// What no message repeats.
fn value(node: Node<'_>) -> Result<String, Invalid> {
    let value = node.string()?;
    if value.len() < MIN_SECRET_BYTES {
        return Err(Invalid::here(format!(
            "has fewer than {MIN_SECRET_BYTES} bytes: it could not be masked in a log"
        )));
    }
    if value.len() > MAX_SECRET_BYTES || value.contains('\0') {
        return Err(Invalid::here(format!(
            "must have at most {MAX_SECRET_BYTES} bytes and no NUL"
        )));
    }
    if value.trim().len() < MIN_SECRET_BYTES {
        Err(Invalid::here("is mostly white space"))
    } else {
        Ok(value)
    }
}

/// Written as runs write it.
fn repository(node: Node<'_>) -> Result<String, Invalid> {
    let text = node.text(MAX_SOURCE)?;
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        Err(Invalid::here("must be printable, without spaces"))
    } else {
        Ok(text)
    }
}

/// As people name it: `refs/heads/` would never fit.
fn branch(node: Node<'_>) -> Result<String, Invalid> {
    let text = repository(node)?;
    if text.starts_with("refs/") {
        Err(Invalid::here(
            "must be the branch's name, without `refs/heads/`",
        ))
    } else {
        Ok(text)
    }
}

fn kind(node: Node<'_>) -> Result<SecretKind, Invalid> {
    SecretKind::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be `plain`, `token` or `ssh-key`"))
}

fn username(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(MAX_USERNAME)?;
    if name.contains(|c: char| c.is_control() || c == ':') {
        Err(Invalid::here("must be printable, without `:`"))
    } else {
        Ok(name)
    }
}

fn known_hosts(node: Node<'_>) -> Result<String, Invalid> {
    let text = node.string()?;
    let plain = |c: char| c == '\n' || c == '\t' || !c.is_control();
    if text.len() > MAX_KNOWN_HOSTS_BYTES || !text.chars().all(plain) {
        let words = format!("must be printable lines of at most {MAX_KNOWN_HOSTS_BYTES} bytes");
        return Err(Invalid::here(words));
    }
    if text.trim().is_empty() {
        Err(Invalid::here("is empty: no host would be believed"))
    } else {
        Ok(text)
    }
}

/// A secret, never its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretView {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    pub kind: SecretKind,
    pub created_at: Millis,
    pub updated_at: Millis,
    /// Who set it last: the id of a token.
    pub updated_by: String,
    /// Which key it is sealed with; not the key.
    pub key_id: String,
}

/// `POST /api/v1/secrets/rotate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretsRotated {
    /// Sealed anew with the first key.
    pub rotated: u64,
    /// All there are.
    pub secrets: u64,
    /// The key that everything is sealed with now.
    pub key_id: String,
}

/// `POST /api/v1/runner/secrets`, with the lease in `Delta-Lease`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FetchSecrets {
    pub names: Vec<String>,
}

impl FetchSecrets {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            // One more than a job may name: that of its checkout.
            let most = MAX_SECRETS + 1;
            let names = p.note(f.must("names", |it| it.each(most, secret_name)));
            let names = names?;
            if names.is_empty() {
                p.push(Invalid::field("names", "is empty"));
            }
            Some(FetchSecrets { names })
        })
    }
}

/// Values, for whoever holds the lease.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct SecretValues {
    pub secrets: Vec<SecretValue>,
}

#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct SecretValue {
    pub name: String,
    pub kind: SecretKind,
    pub value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_hosts: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        SetSecret::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_plain_secret_needs_a_name_and_a_value() {
        let secret = SetSecret::parse(br#"{"name":"TOKEN","value":"canary-value"}"#).unwrap();
        assert_eq!(secret.kind, SecretKind::Plain);
        assert!(!format!("{secret:?}").contains("canary"));
    }

    // T6: what cannot be masked is not taken.
    #[test]
    fn what_is_wrong_with_a_secret_is_said_without_its_value() {
        assert!(refused(r#"{"name":"A","value":"12345"}"#).contains("value: has fewer than 6"));
        assert!(refused(r#"{"name":"A","value":"ab      "}"#).contains("white space"));
        assert!(refused(r#"{"name":"A B","value":"canary"}"#).starts_with("name: "));
        let words = refused(r#"{"name":"A","value":"canary x","kind":"token"}"#);
        assert!(words.contains("is no token") && !words.contains("canary"));
        let key = r#"{"name":"A","value":"canary","kind":"ssh-key"}"#;
        let words = refused(key);
        assert!(words.contains("known_hosts: is missing"), "{words}");
        assert!(words.contains("value: is no private key"), "{words}");
        let words = refused(r#"{"name":"A","value":"canary","username":"u"}"#);
        assert!(words.contains("username: is for the kind token"), "{words}");
    }
}
