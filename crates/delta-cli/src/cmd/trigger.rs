//! `delta-ci trigger`: has a server plan what a branch of a registered repository is now, and run
//! it.

use delta_wire::api::{RepositoryView, RunView, TriggerRun};
use delta_wire::nearest::nearest;

use super::token::path_part;
use crate::client::{self, Client, Target};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::planning::input;
use crate::sanitize;
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
        let text = match client.post_text(&path, &request).await {
            Err(failure) if failure.exit == Exit::NotFound => {
                return Err(unknown(client, &args.repository, failure).await);
            }
            answered => answered?,
        };
        if terminal.json {
            terminal.value(&client::read::<serde_json::Value>(&text)?);
            return Ok(Exit::Ok);
        }
        let view: RunView = client::read(&text)?;
        let id = sanitize::text(&view.summary.run_id);
        terminal.data(&id);
        let commit = view.summary.commit.as_deref().unwrap_or_default();
        terminal.say(&format!(
            "{} is planned at {}; delta-ci show {id} tells how it goes",
            sanitize::text(&args.repository),
            sanitize::text(commit)
        ));
        Ok(Exit::Ok)
    })
    .await
}

/// Names of other repositories that are listed: whoever has more looks at the list itself.
const LISTED: usize = 5;

/// Which repository is not there, and which are.
async fn unknown(client: &Client, name: &str, failure: Failure) -> Failure {
    // Whoever may trigger may not be allowed to list: then what was said must do.
    let listed = client
        .get::<Vec<RepositoryView>>("/api/v1/repositories")
        .await;
    let Ok(repositories) = listed else {
        return failure;
    };
    let names: Vec<&str> = repositories.iter().map(|it| it.name.as_str()).collect();
    if names.contains(&name) {
        return failure;
    }
    let what = format!("there is no repository `{}`", sanitize::text(name));
    let next = match (nearest(name, names.iter().copied()), names.as_slice()) {
        (Some(near), _) => format!("did you mean {near}? delta-ci repo list shows all"),
        (None, []) => "delta-ci repo add registers one".to_owned(),
        (None, few) if few.len() <= LISTED => format!("known are {}", few.join(", ")),
        (None, _) => "delta-ci repo list shows what there is".to_owned(),
    };
    Failure::new(failure.exit, what).next(next)
}
