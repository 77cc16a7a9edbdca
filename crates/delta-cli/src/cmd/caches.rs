//! `delta-ci caches`: which caches are kept, for whom, and removing them.

use std::time::Duration;

use clap::Subcommand;
use delta_wire::api::{CacheList, CacheView};

use crate::client::{self, Client, Target};
use crate::columns;
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::human_time;
use crate::sanitize;
use crate::state_words;
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone};

const EXAMPLES: &str = "\
Examples:
  delta-ci caches                    the most recently used first
  delta-ci caches rm cargo-linux-ab  every cache whose key or id begins so";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Remove caches by the beginning of their keys, or by their ids
    Rm(Remove),
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct Remove {
    /// The beginning of a key or of an id
    #[arg(required = true)]
    which: Vec<String>,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    match args.command {
        Some(Verb::Rm(remove)) => {
            client::with(&remove.target, async |client| {
                rm(client, &remove.which, terminal).await
            })
            .await
        }
        None => client::reading(&args.target, async |client| list(client, terminal).await).await,
    }
}

async fn list(client: &Client, terminal: &Terminal) -> Done {
    let text = client.get_text("/api/v1/caches").await?;
    if terminal.json {
        terminal.data(&text);
        return Ok(Exit::Ok);
    }
    let list: CacheList = client::read(&text)?;
    if list.caches.is_empty() {
        terminal.say("no caches");
        return Ok(Exit::Ok);
    }
    let row = |it: &CacheView| {
        let text =
            |text: &Option<String>, none: &str| sanitize::text(text.as_deref().unwrap_or(none));
        // Who has no repository has a name.
        let of = match (&it.repository, &it.created_by) {
            (None, Some(who)) => format!("(runs of {})", sanitize::text(who)),
            (repository, _) => text(repository, "-"),
        };
        let saves = it.work_millis.map(Duration::from_millis);
        let saves = saves.map(|it| format!("up to {}", human_time::short(it)));
        vec![
            Cell::from(state_words::bytes(it.size)),
            Cell::from(it.used_at.to_string()),
            Cell::from(saves.unwrap_or_else(|| "-".to_owned())),
            if it.trusted {
                Cell::from("trusted")
            } else {
                Cell::toned("untrusted", Tone::Warn)
            },
            Cell::from(text(&it.git_ref, "(default)")),
            Cell::from(of),
            Cell::from(sanitize::text(&it.key)),
        ]
    };
    let rows: Vec<Vec<Cell>> = list.caches.iter().map(row).collect();
    table::show(terminal, &columns::CACHES, &rows);
    Ok(Exit::Ok)
}

async fn rm(client: &Client, which: &[String], terminal: &Terminal) -> Done {
    let list: CacheList = client.get("/api/v1/caches").await?;
    let named = |it: &&CacheView| {
        let mut which = which.iter().filter(|word| !word.is_empty());
        which.any(|word| it.key.starts_with(word) || it.id.starts_with(word))
    };
    let named: Vec<&CacheView> = list.caches.iter().filter(named).collect();
    if named.is_empty() {
        return Err(Failure::new(Exit::NotFound, "there is no such cache")
            .next("delta-ci caches lists what there is"));
    }
    for cache in named {
        client
            .delete(&format!("/api/v1/caches/{}", cache.id))
            .await?;
        let (key, size) = (sanitize::text(&cache.key), state_words::bytes(cache.size));
        terminal.say(&format!("removed {key}  {size}"));
    }
    Ok(Exit::Ok)
}
