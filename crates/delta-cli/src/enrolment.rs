//! Which credential an agent works with: a token that was made for it, or one of its own for which
//! it exchanges an enrolment token, once.

use std::path::{Path, PathBuf};

use delta_agent::enrol::{self, EnrolError, Enrolled};
use delta_agent::{ClientSettings, TokenSource};

use crate::client::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub struct Flags {
    /// A file with a one-time enrolment token: exchanged at the first start for a credential of
    /// this agent's own, and not looked at again
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "token_file",
        requires = "state_dir"
    )]
    enroll_token_file: Option<PathBuf>,
    /// The folder where that credential is kept, for this user alone
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Flags {
    /// The name an agent has and the token it shows. One that enrolled has the id it was given.
    pub async fn token(
        self,
        token_file: Option<PathBuf>,
        server: &str,
        ca_file: Option<PathBuf>,
        name: String,
        terminal: &Terminal,
    ) -> Result<(String, TokenSource), Failure> {
        let (Some(once), Some(state)) = (self.enroll_token_file, self.state_dir) else {
            let file = token_file.ok_or_else(|| {
                Failure::new(Exit::Usage, "the agent has no credential")
                    .next("--token-file FILE, or --enroll-token-file FILE --state-dir DIR")
            })?;
            connect::read_token(&file)?;
            return Ok((name, TokenSource::File(file)));
        };
        let kept = enrol::enrolled(&state).map_err(|error| refused(&error, &once))?;
        if let Some(Enrolled { agent_id, token }) = kept {
            return Ok((agent_id, token));
        }
        connect::read_token(&once)?;
        let settings = ClientSettings {
            server: server.to_owned(),
            token: TokenSource::File(once.clone()),
            ca_file,
        };
        let Enrolled { agent_id, token } = enrol::enrol(&settings, &name, &state)
            .await
            .map_err(|error| refused(&error, &once))?;
        let place = state.display();
        terminal.say(&format!(
            "enrolled as {agent_id}; its credential is in {place}, and the enrolment token is \
             used up"
        ));
        Ok((agent_id, token))
    }
}

fn refused(error: &EnrolError, once: &Path) -> Failure {
    let what = format!("the agent cannot enrol with {}", once.display());
    let (exit, next) = match error {
        EnrolError::Refused => (
            Exit::NotAllowed,
            "delta-ci token create --role enrolment --data DIR, on the server's machine; and \
             delta-ci token list, which shows who used the old one",
        ),
        EnrolError::Client(_) => (Exit::Usage, "check --server and --ca-cert"),
        EnrolError::Call(_) => (Exit::Unreachable, "check --server, and try again"),
        EnrolError::State { .. } => (Exit::Internal, "name another folder with --state-dir"),
    };
    Failure::new(exit, what).caused_by(error).next(next)
}
