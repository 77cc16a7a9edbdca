//! What an earlier run left in a store that stays. One that was killed has not ended, and the agent
//! here takes whatever waits in its store: it would go on with jobs that nobody asked for now, on a
//! tree that is another one by now. So they end before it starts.
//!
//! Runs that it did not make itself are a server's, which is only stopped: they are left alone, and
//! nothing runs beside them.

use std::path::Path;

use delta_wire::api::{EventList, RunList, RunSummary};

use crate::client::{Client, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::secret_input;
use crate::terminal::Terminal;

/// What this program is called in the records of the runs that it makes. A server's own people have
/// other names, so that its runs can be told from these.
pub const NAME: &str = "local-run";

/// States in which a job of a run may still be handed out. Of one that is to stop, none is.
const LIVE: [&str; 4] = ["CREATED", "PLANNING", "QUEUED", "RUNNING"];

const REASON: &str = "left unfinished by a run that was killed";

/// Ends what was left, and says so.
pub async fn end(data: &Path, terminal: &Terminal) -> Result<(), Failure> {
    let client = connect::beside(data).await?.ok_or_else(super::no_answer)?;
    let runs = live(&client).await?;
    for run in &runs {
        if is_ours(&client, run).await? {
            continue;
        }
        let (id, place) = (&run.run_id, secret_input::shown(data));
        let what = format!("{id} waits in {place} for a server, which is to execute it");
        return Err(Failure::new(Exit::Refused, what)
            .because("this run takes whatever waits there: it would be executed here, on this tree")
            .next(format!(
                "delta-ci up --data {place} executes it; delta-ci cancel {id} --data {place} ends \
                 it; or name another folder with --data"
            )));
    }
    for run in runs {
        super::cancel(&client, &run.run_id, REASON).await?;
        terminal.say(&format!("{} was {REASON}; it is canceled", run.run_id));
    }
    Ok(())
}

/// Whether a run like this one made it: the first of its events names who did.
async fn is_ours(client: &Client, run: &RunSummary) -> Result<bool, Failure> {
    let path = format!("/api/v1/runs/{}/events", run.run_id);
    let page: EventList = client.get(&path).await?;
    Ok(page.events.first().is_some_and(|made| made.actor == NAME))
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
