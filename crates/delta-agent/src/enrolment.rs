//! Enrolment: a one-time token is exchanged, once, for a credential of this agent's own, which is
//! kept in the state folder for good.
//!
//! The id is written before the credential, so that whoever finds the credential finds both. Once
//! it is there, the enrolment token is not looked at any more.

use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_wire::Secret;
use delta_wire::api::{AgentEnrolled, EnrolAgent};

use crate::connection::{Address, AddressError};
use crate::token_source::TokenSource;

/// How long the exchange may take.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// Names inside the state folder.
const CREDENTIAL: &str = "credential";
const AGENT_ID: &str = "agent-id";

/// An agent with a credential of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolled {
    /// The only id the credential may be used with.
    pub agent_id: String,
    pub token: TokenSource,
}

/// Why an agent is not enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("the file of authorities {} cannot be used: {why}", .path.display())]
    Authorities { path: PathBuf, why: String },
    #[error("the enrolment token was not taken: it is used up, expired or revoked")]
    Refused,
    #[error("the server did not enrol this agent: {0}")]
    Call(String),
    #[error("the state folder {} cannot be used", .path.display())]
    State {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What was kept by an earlier enrolment.
pub fn enrolled(state: &Path) -> Result<Option<Enrolled>, EnrolError> {
    let credential = state.join(CREDENTIAL);
    if !credential.exists() {
        return Ok(None);
    }
    let id = state.join(AGENT_ID);
    let agent_id = std::fs::read_to_string(&id).map_err(|source| EnrolError::State {
        path: id.clone(),
        source,
    })?;
    Ok(Some(Enrolled {
        agent_id: agent_id.trim().to_owned(),
        token: TokenSource::File(credential),
    }))
}

/// Where and with what an agent enrols.
#[derive(Debug)]
pub struct Enrolment<'a> {
    pub server: &'a str,
    /// A PEM file of authorities to trust instead of the system's.
    pub ca_file: Option<&'a Path>,
    /// The one-time token.
    pub token: Secret,
    pub agent_name: &'a str,
}

/// The agent's own credential: what is kept in `state`, otherwise what a one-time enrolment token
/// is exchanged for.
pub async fn enrol(enrolment: Enrolment<'_>, state: &Path) -> Result<Enrolled, EnrolError> {
    if let Some(enrolled) = enrolled(state)? {
        return Ok(enrolled);
    }
    let unusable = |source| EnrolError::State {
        path: state.to_owned(),
        source,
    };
    // Before the exchange: a token must not be used up for a credential that cannot be kept.
    let mut folder = std::fs::DirBuilder::new();
    folder.recursive(true).mode(0o700);
    folder.create(state).map_err(unusable)?;
    keep(&state.join(AGENT_ID), "").map_err(unusable)?;
    let answer = exchange(enrolment).await?;
    keep(&state.join(AGENT_ID), &answer.agent_id).map_err(unusable)?;
    keep(&state.join(CREDENTIAL), &answer.token).map_err(unusable)?;
    Ok(Enrolled {
        agent_id: answer.agent_id,
        token: TokenSource::File(state.join(CREDENTIAL)),
    })
}

async fn exchange(enrolment: Enrolment<'_>) -> Result<AgentEnrolled, EnrolError> {
    let address = Address::parse(enrolment.server)?.checked()?;
    let call = |problem: reqwest::Error| EnrolError::Call(problem.without_url().to_string());
    // A redirect would carry the token to a place nobody chose.
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(ANSWER_TIME);
    if address.is_loopback() {
        builder = builder.no_proxy();
    }
    if let Some(path) = enrolment.ca_file {
        builder = builder.tls_certs_only(authorities(path)?);
    }
    let url = format!(
        "{}/api/v1/agents/enroll",
        enrolment.server.trim_end_matches('/')
    );
    let body = EnrolAgent {
        agent_name: enrolment.agent_name.to_owned(),
    };
    let client = builder.build().map_err(call)?;
    let request = client.post(url).bearer_auth(enrolment.token.expose());
    let answer = request.json(&body).send().await.map_err(call)?;
    match answer.status().as_u16() {
        // What is wrong with it is not repeated: it may hold the secret.
        201 => answer
            .json()
            .await
            .map_err(|_| EnrolError::Call("its answer cannot be understood".to_owned())),
        401 | 403 => Err(EnrolError::Refused),
        status => Err(EnrolError::Call(format!("it answered {status}"))),
    }
}

fn authorities(path: &Path) -> Result<Vec<reqwest::Certificate>, EnrolError> {
    let bad = |why: String| EnrolError::Authorities {
        path: path.to_owned(),
        why,
    };
    let pem = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
    let found = reqwest::Certificate::from_pem_bundle(&pem);
    let found = found.map_err(|error| bad(error.to_string()))?;
    if found.is_empty() {
        Err(bad("it holds no certificate".to_owned()))
    } else {
        Ok(found)
    }
}

/// Writes a file for its owner alone, whole or not at all.
fn keep(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    // The name must survive a power cut, too: the token cannot be had again.
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()
}
