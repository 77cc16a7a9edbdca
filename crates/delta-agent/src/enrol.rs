//! Enrolment: a one-time token is exchanged, once, for a credential of this agent's own, which is
//! kept in the state folder for good.
//!
//! The id is written before the credential, so that whoever finds the credential finds both. Once
//! it is there, the enrolment token is not looked at any more.

use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use delta_wire::api::{AgentEnrolled, EnrolAgent};

use crate::answer::CallError;
use crate::client::{Client, ClientError, ClientSettings};
use crate::secret::TokenSource;

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
    Client(#[from] ClientError),
    #[error("the enrolment token was not taken: it is used up, expired or revoked")]
    Refused,
    #[error(transparent)]
    Call(CallError),
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

/// The agent's own credential: what is kept in `state`, otherwise what `settings.token`, a one-time
/// enrolment token, is exchanged for.
pub async fn enrol(
    settings: &ClientSettings,
    agent_name: &str,
    state: &Path,
) -> Result<Enrolled, EnrolError> {
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
    let client = Client::new(settings)?;
    let request = EnrolAgent {
        agent_name: agent_name.to_owned(),
    };
    let answer: AgentEnrolled = client
        .enrol(&request)
        .await
        .map_err(|problem| match problem {
            CallError::Unauthorized { .. } => EnrolError::Refused,
            other => EnrolError::Call(other),
        })?;
    keep(&state.join(AGENT_ID), &answer.agent_id).map_err(unusable)?;
    keep(&state.join(CREDENTIAL), &answer.token).map_err(unusable)?;
    Ok(Enrolled {
        agent_id: answer.agent_id,
        token: TokenSource::File(state.join(CREDENTIAL)),
    })
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
