//! The secrets of a job: fetched under its lease before anything else is done, given to its
//! steps as variables, and masked in whatever is said about it from then on.
//!
//! They live in the memory of the agent and of the shim, and nowhere on a disk. An agent that finds
//! an attempt of an earlier one fetches them again when it has something to say itself.

use std::sync::Arc;
use std::time::Duration;

use delta_core::Cause;
use delta_git::{Credential, UnusableCredential};
use delta_shim::mask::Patterns;
use delta_wire::api::{FetchSecrets, SecretKind, SecretValue, SecretValues};
use delta_wire::job_spec::CheckoutSpec;
use delta_wire::{ErrorBody, Secret};
use reqwest::{Method, StatusCode};
use zeroize::{Zeroize, Zeroizing};

use super::{Around, Failed, Prepared};
use crate::backoff::Backoff;

const PATH: &str = "/api/v1/runner/secrets";

/// Tries of a server that does not answer: about half a minute, well within a lease's life.
const TRIES: u32 = 6;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Bytes of an answer: a job's secrets and what JSON adds to them.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of all secrets of one job. Each is looked for in a dozen forms, and a process gets no
/// more than two megabytes of variables.
const MAX_TOTAL_BYTES: usize = 256 * 1024;

/// Everything that was fetched for one attempt. It has no `Debug`.
pub(crate) struct Fetched {
    values: Vec<SecretValue>,
    /// What is looked for in the log.
    pub patterns: Option<Arc<Patterns>>,
}

impl Fetched {
    fn new(values: Vec<SecretValue>) -> Fetched {
        let patterns = Patterns::of(values.iter().map(|it| it.value.as_str()));
        Fetched {
            patterns: patterns.map(Arc::new),
            values,
        }
    }

    fn get(&self, name: &str) -> Option<&SecretValue> {
        self.values.iter().find(|it| it.name == name)
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        for value in &mut self.values {
            value.value.zeroize();
        }
    }
}

/// Fetches what the job spec names, and masks the log from here on.
pub(super) async fn before(around: &Around<'_>, prepared: &mut Prepared) -> Result<(), Failed> {
    let names = around.spec.secret_names();
    if names.is_empty() {
        return Ok(());
    }
    if around.context.untrusted {
        // The server would refuse them anyway.
        around
            .log
            .mark("this run is not trusted: it gets no secrets");
        return Ok(());
    }
    let fetched = fetch(around, &names).await?;
    let named = around.spec.secrets.iter();
    let variables = named.filter_map(|it| Some((it.env.clone(), fetched.get(&it.name)?)));
    prepared.secrets = variables
        .map(|(name, it)| (name, Secret::new(it.value.clone())))
        .collect();
    let values = fetched.values.iter();
    prepared.masked = values.map(|it| Secret::new(it.value.clone())).collect();
    let words = match names.len() {
        1 => "1 secret".to_owned(),
        count => format!("{count} secrets"),
    };
    around
        .log
        .mark(&format!("got {words}: {}", names.join(", ")));
    Ok(())
}

/// Fetches them again, where an earlier agent did so before: what is said after the work is masked
/// too, or not said.
pub(super) async fn after(around: &Around<'_>) -> Result<(), Failed> {
    let names = around.spec.secret_names();
    let nothing = names.is_empty() || around.context.untrusted || around.log.patterns().is_some();
    if !nothing {
        // The work was begun with them: what is amiss now is none of its own.
        fetch(around, &names).await.map_err(|failed| Failed {
            cause: Cause::AgentError,
            ..failed
        })?;
    }
    Ok(())
}

/// What the checkout is to prove itself with, of what was fetched.
pub(crate) fn checkout_credential(
    around: &Around<'_>,
) -> Result<Option<Credential>, UnusableCredential> {
    let Some(CheckoutSpec::On(options)) = &around.spec.checkout else {
        return Ok(None);
    };
    let name = options.credential.as_deref();
    let fetched = around.secrets.get().zip(name);
    let Some(found) = fetched.and_then(|(fetched, name)| fetched.get(name)) else {
        return Ok(None);
    };
    let secret = Secret::new(found.value.clone());
    Ok(Some(match found.kind {
        SecretKind::Plain => Credential::from_secret(&secret)?,
        SecretKind::Token => Credential::Token {
            username: found.username.clone(),
            token: secret,
        },
        SecretKind::SshKey => Credential::SshKey {
            key: secret,
            known_hosts: found.known_hosts.clone().unwrap_or_default(),
        },
    }))
}

async fn fetch<'a>(around: &'a Around<'_>, names: &[&str]) -> Result<&'a Fetched, Failed> {
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut tries = 0;
    let values = loop {
        match ask(around, names).await {
            Ok(values) => break values,
            Err(SecretsError::Final(failed)) => return Err(failed),
            Err(SecretsError::Passing(why)) => {
                tries += 1;
                if tries >= TRIES {
                    let summary = format!("the secrets could not be fetched: {why}");
                    return Err(failed(Cause::StartUp, summary));
                }
                tokio::time::sleep(backoff.next(None, entropy())).await;
            }
        }
    };
    let total: usize = values.iter().map(|it| it.value.len()).sum();
    if total > MAX_TOTAL_BYTES {
        let summary = format!("the job's secrets have more than {MAX_TOTAL_BYTES} bytes together");
        return Err(failed(Cause::SpecError, summary));
    }
    let fetched = around.secrets.get_or_init(|| Fetched::new(values));
    around.log.mask(fetched.patterns.clone());
    Ok(fetched)
}

/// Why there are no secrets.
enum SecretsError {
    /// Nobody answered, or not now.
    Passing(String),
    Final(Failed),
}

async fn ask(around: &Around<'_>, names: &[&str]) -> Result<Vec<SecretValue>, SecretsError> {
    let broken = |problem: &dyn std::fmt::Display| {
        let summary = format!("the secrets could not be asked for: {problem}");
        SecretsError::Final(failed(Cause::StartUp, summary))
    };
    let courier = &around.context.courier;
    let client = courier.client().map_err(|problem| broken(&problem))?;
    let request = client
        .make(Method::POST, PATH, around.lease)
        .map_err(|problem| broken(&problem))?;
    let wanted = FetchSecrets {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let passing = |error: reqwest::Error| SecretsError::Passing(error.without_url().to_string());
    let mut answer = request.json(&wanted).send().await.map_err(passing)?;
    let status = answer.status();
    let mut body = Zeroizing::new(Vec::new());
    while let Some(piece) = answer.chunk().await.map_err(passing)? {
        if body.len() + piece.len() > MAX_ANSWER_BYTES {
            return Err(broken(&"the answer is too long"));
        }
        body.extend_from_slice(&piece);
    }
    if status == StatusCode::OK {
        let values: Result<SecretValues, _> = serde_json::from_slice(&body);
        // What is wrong with it is not repeated: values may be in it.
        return match values {
            Ok(values) => Ok(values.secrets),
            Err(_) => Err(broken(&"the answer cannot be read")),
        };
    }
    Err(refused(status, &body))
}

/// The server's own words name the secret that is missing or may not be had.
fn refused(status: StatusCode, body: &[u8]) -> SecretsError {
    let said: Option<ErrorBody> = serde_json::from_slice(body).ok();
    let ours = said.is_some();
    let about_agent = said
        .as_ref()
        .is_some_and(|it| it.code.starts_with("AGENT_"));
    // After a handover this process may ask before it has registered.
    let again = status == StatusCode::FORBIDDEN && said.as_ref().is_some_and(|it| it.retryable);
    let message = said.map_or_else(|| format!("the server says {status}"), |it| it.message);
    if again || status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return SecretsError::Passing(message);
    }
    SecretsError::Final(match status {
        // A lease that is over: the session hears of it too, and nobody waits for this.
        StatusCode::CONFLICT => failed(Cause::StartUp, format!("no secrets: {message}")),
        StatusCode::UNAUTHORIZED => failed(Cause::StartUp, format!("no secrets: {message}")),
        // The agent is to blame, not the job.
        _ if about_agent => failed(Cause::StartUp, format!("no secrets: {message}")),
        // Something on the way there answered, and not the server.
        _ if !ours => failed(Cause::StartUp, format!("no secrets: {message}")),
        _ => failed(Cause::SpecError, message),
    })
}

fn failed(cause: Cause, summary: String) -> Failed {
    Failed { cause, summary }
}

fn entropy() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness all wait alike, which is no harm among the slots of one machine.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use delta_wire::ErrorCode;

    use super::*;

    // D10
    #[test]
    fn only_the_servers_own_word_makes_it_the_jobs_mistake() {
        let cause = |status, body: &str| match refused(status, body.as_bytes()) {
            SecretsError::Passing(_) => None,
            SecretsError::Final(failed) => Some(failed.cause),
        };
        let own = serde_json::to_string(&ErrorBody::new(ErrorCode::NotFound, "no such secret"));
        let own = own.expect("a body");
        let of_agent = |code| serde_json::to_string(&ErrorBody::new(code, "this agent"));
        let revoked = of_agent(ErrorCode::AgentRevoked).expect("a body");
        let not_yet = of_agent(ErrorCode::AgentSuperseded).expect("a body");
        let page = "<html>403 Forbidden</html>";
        for (status, body, wanted) in [
            (StatusCode::NOT_FOUND, own.as_str(), Some(Cause::SpecError)),
            (StatusCode::FORBIDDEN, &own, Some(Cause::SpecError)),
            (StatusCode::FORBIDDEN, &revoked, Some(Cause::StartUp)),
            (StatusCode::FORBIDDEN, &not_yet, None),
            (StatusCode::FORBIDDEN, page, Some(Cause::StartUp)),
            (StatusCode::NOT_FOUND, "", Some(Cause::StartUp)),
            (StatusCode::CONFLICT, &own, Some(Cause::StartUp)),
            (StatusCode::BAD_GATEWAY, page, None),
        ] {
            assert_eq!(cause(status, body), wanted, "{status} {body}");
        }
    }
}
