//! `delta-ci cancel`: asks a run or a job to stop. Two-phase: the agent is told, stops and
//! acknowledges; when it does not, the server ends it at its deadline.

use delta_wire::api::{CancelRequest, JobView, RunView};

use crate::client::find::{self, Found};
use crate::client::{self, Target};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::state_words;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  delta-ci cancel latest
  delta-ci cancel run_0197f3c4 --reason 'wrong branch'
  delta-ci cancel latest/deploy        one job of the run
  delta-ci cancel deploy               the same, where no other `deploy` runs or waits";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run or a job: its id or the beginning of it, `latest`, RUN/NAME, or the name of a job
    /// where only one of that name has not ended
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
        let found = find::to_change(client, &args.what, terminal).await?;
        let (id, path) = match &found {
            Found::Run(id) => (id, format!("/api/v1/runs/{id}")),
            Found::Job(id) => (id, format!("/api/v1/jobs/{id}")),
        };
        let before = client.get_text(&path).await?;
        let ended_before = ended(&found, &before)?;
        let request = CancelRequest {
            reason: args.reason.clone(),
        };
        let after = match ended_before {
            Some(_) => before,
            None => {
                client
                    .post_text(&format!("{path}/cancel"), &request)
                    .await?
            }
        };
        if terminal.json {
            terminal.value(&client::read::<serde_json::Value>(&after)?);
            return Ok(Exit::Ok);
        }
        terminal.say(&match (ended_before, ended(&found, &after)?) {
            (Some(end), _) => format!("{id} had already ended: {end}; nothing was changed"),
            (None, Some(end)) => format!("{id} has ended: {end}"),
            (None, None) => format!("asked {id} to stop; delta-ci show {id} tells how it goes"),
        });
        Ok(Exit::Ok)
    })
    .await
}

/// How it ended, if it has.
fn ended(found: &Found, text: &str) -> Result<Option<&'static str>, Failure> {
    Ok(match found {
        Found::Run(_) => {
            let run: RunView = client::read(text)?;
            run.summary.outcome.map(|outcome| outcome.as_str())
        }
        Found::Job(_) => {
            let job: JobView = client::read(text)?;
            state_words::is_over(job.state).then(|| job.state.as_str())
        }
    })
}
