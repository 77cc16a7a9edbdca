//! `delta-ci rerun`: the same jobs again, as a new run that knows the old one.

use delta_wire::api::{RerunRequest, RunView};

use crate::client::{self, Target, find};
use crate::exit::Exit;
use crate::failure::Done;
use crate::sanitize;
use crate::state_words;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  delta-ci rerun latest                everything again
  delta-ci rerun latest --failed       only what did not succeed, and what needs it
  delta-ci rerun latest --job unit     one job, and what needs it

Jobs that are not run again are kept: the new run has their results and artifacts.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run that has ended: its id or the beginning of it, or `latest`
    run: String,
    /// Only the jobs that did not succeed, and those that need them
    #[arg(long, conflicts_with = "job")]
    failed: bool,
    /// Only this job, and those that need it
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::with(&args.target, async |client| {
        let run = find::run(client, &args.run, terminal).await?;
        let request = RerunRequest {
            failed_only: args.failed,
            job: args.job.clone(),
        };
        let text = client
            .post_text(&format!("/api/v1/runs/{run}/rerun"), &request)
            .await?;
        if terminal.json {
            terminal.value(&client::read::<serde_json::Value>(&text)?);
        } else {
            let view: RunView = client::read(&text)?;
            terminal.data(&sanitize::text(&view.summary.run_id));
            let kept = view.jobs.iter().filter(|job| job.kept_from.is_some());
            let kept = match kept.count() {
                0 => String::new(),
                number => format!(", {} kept", state_words::count(number as u64, "job")),
            };
            terminal.say(&format!(
                "run attempt {} of what {run} was{kept}; delta-ci show {} tells how it goes",
                view.summary.run_attempt,
                sanitize::text(&view.summary.run_id)
            ));
            client.say_who_executes(terminal);
        }
        Ok(Exit::Ok)
    })
    .await
}
