//! What an earlier run left in a store that stays. One that was killed has not ended, and the agent
//! here takes whatever waits in its store: it would go on with jobs that nobody asked for now, on a
//! tree that is another one by now. So they end before it starts.
//!
//! Runs of a repository are a server's, which is only stopped: they are left alone, and nothing
//! runs beside them.

use std::path::Path;

use delta_wire::api::{RunList, RunSummary};

use crate::client::{Client, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;
use crate::words;

/// States in which a job of a run may still be handed out. Of one that is to stop, none is.
const LIVE: [&str; 4] = ["CREATED", "PLANNING", "QUEUED", "RUNNING"];

const REASON: &str = "left unfinished by a run that was killed";

/// Ends what was left, and says so.
pub async fn end(data: &Path, terminal: &Terminal) -> Result<(), Failure> {
    let client = connect::beside(data).await?.ok_or_else(super::no_answer)?;
    let runs = live(&client).await?;
    let servers = runs.iter().filter(|run| run.repository.is_some()).count();
    if servers > 0 {
        let count = words::count(servers as u64, "run");
        let what = format!("{count} of a server in {} did not end", data.display());
        return Err(Failure::new(Exit::Refused, what)
            .because("they would be executed here, on this tree")
            .next("name another folder with --data, or let `delta-ci server` end them"));
    }
    for run in runs {
        super::cancel(&client, &run.run_id, REASON).await?;
        terminal.say(&format!("{} was {REASON}; it is canceled", run.run_id));
    }
    Ok(())
}

async fn live(client: &Client) -> Result<Vec<RunSummary>, Failure> {
    let mut all = Vec::new();
    for state in LIVE {
        let mut cursor = String::new();
        loop {
            let path = format!("/api/v1/runs?limit=200&state={state}{cursor}");
            let page: RunList = client.get(&path).await?;
            all.extend(page.runs);
            match page.next_cursor {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
    }
    Ok(all)
}
