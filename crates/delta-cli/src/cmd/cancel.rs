//! `delta-ci cancel`: asks a run or a job to stop. Two-phase: the agent is told, stops and
//! acknowledges; when it does not, the server ends it at its deadline.

use delta_wire::api::CancelRequest;

use crate::client::find::{self, Found};
use crate::client::{self, Target};
use crate::exit::Exit;
use crate::failure::Done;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  delta-ci cancel latest
  delta-ci cancel run_0197f3c4 --reason 'wrong branch'
  delta-ci cancel latest/deploy        one job of the run";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run or a job: its id or the beginning of it, `latest`, or RUN/NAME
    #[arg(value_name = "RUN|JOB")]
    what: String,
    /// Shown wherever the cancel is
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::with(&args.target, async |client| {
        let (id, path) = match find::any(client, &args.what).await? {
            Found::Run(id) => (id.clone(), format!("/api/v1/runs/{id}/cancel")),
            Found::Job(id) => (id.clone(), format!("/api/v1/jobs/{id}/cancel")),
        };
        let request = CancelRequest {
            reason: args.reason.clone(),
        };
        let text = client.post_text(&path, &request).await?;
        if terminal.json {
            terminal.value(&client::read::<serde_json::Value>(&text)?);
        } else {
            terminal.say(&format!(
                "asked {id} to stop; delta-ci show {id} tells how it goes"
            ));
        }
        Ok(Exit::Ok)
    })
    .await
}
