//! Which credential an agent works with: a token that was made for it, or one of its own for which
//! it exchanges an enrolment token, once.

use std::path::{Path, PathBuf};

use delta_agent::TokenSource;
use delta_agent::enrolment::{self, EnrolError, Enrolled, Enrolment};

use crate::client::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::secret_input;
use crate::terminal::Terminal;

/// What an agent was given to come in with.
pub struct Given {
    pub token_file: Option<PathBuf>,
    /// A one-time token.
    pub enroll_token_file: Option<PathBuf>,
    /// The certificate says who it is.
    pub certificate: bool,
}

/// Where it comes in, and as what.
pub struct Place<'a> {
    pub server: &'a str,
    pub ca_file: Option<&'a Path>,
    pub name: &'a str,
    /// Where a credential of its own is kept.
    pub state: &'a Path,
}

/// The token an agent shows; none where its certificate is enough.
pub async fn token(
    given: Given,
    place: Place<'_>,
    terminal: &Terminal,
) -> Result<Option<TokenSource>, Failure> {
    if let Some(file) = given.token_file {
        connect::read_token(&file)?;
        return Ok(Some(TokenSource::File(file)));
    }
    let Some(once) = given.enroll_token_file else {
        return if given.certificate {
            Ok(None)
        } else {
            Err(Failure::new(Exit::Usage, "the agent has no credential")
                .next("--token-file FILE, --enroll-token-file FILE, or --cert FILE --key FILE"))
        };
    };
    let kept = enrolment::enrolled(place.state).map_err(|error| refused(&error, &once))?;
    if let Some(Enrolled { token, .. }) = kept {
        return Ok(Some(token));
    }
    connect::read_token(&once)?;
    let shown = TokenSource::File(once.clone()).read().map_err(|error| {
        Failure::new(Exit::Usage, "the enrolment token cannot be read")
            .caused_by(&error)
            .next("delta-ci token create --role enrolment --data DIR --out FILE")
    })?;
    let enrolment = Enrolment {
        server: place.server,
        ca_file: place.ca_file,
        token: shown,
        agent_name: place.name,
    };
    let enrolled = enrolment::enrol(enrolment, place.state).await;
    let Enrolled { agent_id, token } = enrolled.map_err(|error| refused(&error, &once))?;
    terminal.say(&format!(
        "enrolled as {agent_id}; its credential is in {}, and the enrolment token is used up",
        secret_input::shown(place.state)
    ));
    Ok(Some(token))
}

fn refused(error: &EnrolError, once: &Path) -> Failure {
    let what = format!("the agent cannot enrol with {}", secret_input::shown(once));
    let (exit, next) = match error {
        EnrolError::Refused => (
            Exit::NotAllowed,
            "delta-ci token create --role enrolment --data DIR, on the server's machine; and \
             delta-ci token list, which shows who used the old one",
        ),
        EnrolError::Address(_) | EnrolError::Authorities { .. } => {
            (Exit::Usage, "check --server and --ca-cert")
        }
        EnrolError::Call(_) => (Exit::Unreachable, "check --server, and try again"),
        EnrolError::State { .. } => (Exit::Internal, "name another folder with --state-dir"),
    };
    Failure::new(exit, what).caused_by(error).next(next)
}
