//! `delta-ci trigger`: has a server plan what a branch of a registered repository is now, and run
//! it.

use delta_wire::api::{RunView, TriggerRun};

use super::token::path_part;
use crate::clean;
use crate::client::{self, Target};
use crate::exit::Exit;
use crate::failure::Done;
use crate::planning::input;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  delta-ci trigger app --ref main
  delta-ci trigger app --ref main --input level=full --input notes='second try'
  delta-ci trigger app --ref refs/tags/v1.2

The event is `manual`, and everything runs, whatever changed. The pipeline file of that commit says
which inputs there are, under `on: {manual: {inputs: …}}`.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A repository, as delta-ci repo list names it
    #[arg(value_name = "REPOSITORY")]
    repository: String,
    /// A branch, or a whole ref such as refs/tags/v1
    #[arg(long = "ref", value_name = "BRANCH")]
    git_ref: String,
    /// A value for an input that the file declares; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = input)]
    input: Vec<(String, String)>,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::with(&args.target, async |client| {
        let request = TriggerRun {
            git_ref: args.git_ref.clone(),
            inputs: args.input.iter().cloned().collect(),
        };
        let name = path_part(&args.repository);
        let path = format!("/api/v1/repositories/{name}/runs");
        let text = client.post_text(&path, &request).await?;
        if terminal.json {
            terminal.value(&client::read::<serde_json::Value>(&text)?);
            return Ok(Exit::Ok);
        }
        let view: RunView = client::read(&text)?;
        let id = clean::text(&view.summary.run_id);
        terminal.data(&id);
        let commit = view.summary.commit.as_deref().unwrap_or_default();
        terminal.say(&format!(
            "{} is planned at {}; delta-ci show {id} tells how it goes",
            clean::text(&args.repository),
            clean::text(commit)
        ));
        Ok(Exit::Ok)
    })
    .await
}
