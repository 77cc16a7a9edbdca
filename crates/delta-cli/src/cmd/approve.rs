//! `delta-ci approve`: lets a pull request from another repository run. It stays untrusted: no
//! secrets, no caches of others.

use delta_wire::api::RunView;

use crate::client::{self, Target, find};
use crate::exit::Exit;
use crate::failure::Done;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  delta-ci approve run_0197f3c4        look at what it changes first
  delta-ci cancel run_0197f3c4         or end it";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run that waits: its id or the beginning of it, or `latest`
    #[arg(value_name = "RUN")]
    run: String,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::with(&args.target, async |client| {
        let id = find::run(client, &args.run, terminal).await?;
        let nothing = serde_json::json!({});
        let path = format!("/api/v1/runs/{id}/approve");
        let text = client.post_text(&path, &nothing).await?;
        if terminal.json {
            terminal.value(&client::read::<serde_json::Value>(&text)?)
        } else {
            let view: RunView = client::read(&text)?;
            let state = view.summary.state.as_str();
            terminal.say(&format!("{id} is approved; it is {state}"));
        }
        Ok(Exit::Ok)
    })
    .await
}
