//! `delta-ci artifacts`: which files a run or a job left, and fetching them. What is fetched is
//! compared with its hash before it has its name, and lands nowhere but where it was asked for.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use clap::Subcommand;
use delta_wire::api::{ArtifactList, JobArtifact};
use delta_wire::runner::upload_name;
use indicatif::{ProgressBar, ProgressStyle};

use crate::client::find::Found;
use crate::client::{self, Client, Target, find};
use crate::columns;
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::sanitize;
use crate::secret_input;
use crate::state_words;
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone, bars};

const EXAMPLES: &str = "\
Examples:
  delta-ci artifacts latest                      of all jobs of a run
  delta-ci artifacts latest/build                of one job
  delta-ci artifacts get latest/build dist/app   into ./app
  delta-ci artifacts get latest/build dist/app -o - | tar x
  delta-ci artifacts get latest/build -o out     all of them, into the folder out";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true)]
pub struct Args {
    /// A run or a job: RUN, RUN/NAME, a job's name or id; `latest` is the newest run
    #[arg(required = true)]
    what: Option<String>,
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Fetch one artifact of a job, or all of them
    Get(Get),
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct Get {
    /// A job: its name, RUN/NAME or its id; a run with one job stands for it
    job: String,
    /// The artifact; all of the job's latest attempt when absent
    name: Option<String>,
    /// The file to write, a folder to write into, or `-` for one artifact to stdout
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    match (args.command, args.what) {
        (Some(Verb::Get(get)), _) => {
            client::reading(&get.target, async |client| {
                fetch(client, &get, terminal).await
            })
            .await
        }
        (None, what) => {
            let what = what.unwrap_or_default();
            client::reading(&args.target, async |client| {
                list(client, &what, terminal).await
            })
            .await
        }
    }
}

async fn list(client: &Client, what: &str, terminal: &Terminal) -> Done {
    let path = match find::any(client, what, terminal).await? {
        Found::Run(id) => format!("/api/v1/runs/{id}/artifacts"),
        Found::Job(id) => format!("/api/v1/jobs/{id}/artifacts"),
    };
    let text = client.get_text(&path).await?;
    if terminal.json {
        terminal.data(&text);
        return Ok(Exit::Ok);
    }
    let list: ArtifactList = client::read(&text)?;
    if list.artifacts.is_empty() {
        terminal.say("no artifacts");
        return Ok(Exit::Ok);
    }
    let row = |it: &JobArtifact| {
        vec![
            Cell::from(sanitize::text(&it.job)),
            Cell::from(it.attempt.to_string()),
            Cell::toned(sanitize::text(&it.kind), Tone::Quiet),
            Cell::from(state_words::bytes(it.size)),
            Cell::from(sanitize::text(&it.name)),
        ]
    };
    let rows: Vec<Vec<Cell>> = list.artifacts.iter().map(row).collect();
    table::show(terminal, &columns::ARTIFACTS, &rows);
    Ok(Exit::Ok)
}

async fn fetch(client: &Client, get: &Get, terminal: &Terminal) -> Done {
    let job = find::job(client, &get.job, terminal).await?;
    let list: ArtifactList = client.get(&format!("/api/v1/jobs/{job}/artifacts")).await?;
    let Some(name) = &get.name else {
        return all(client, &job, &list, get, terminal).await;
    };
    let found = list.artifacts.iter().rev().find(|it| it.name == *name);
    let artifact = found.ok_or_else(|| {
        let what = format!("the job has no artifact `{}`", sanitize::text(name));
        Failure::new(Exit::NotFound, what).next(format!("delta-ci artifacts {}", get.job))
    })?;
    let last = artifact.name.rsplit('/').next().unwrap_or_default();
    let to = match &get.output {
        Some(path) if is_stdout(path) => None,
        Some(path) if path.is_dir() => Some(inside(path, last)?),
        Some(path) => Some(path.clone()),
        None => Some(inside(Path::new("."), last)?),
    };
    one(client, &job, artifact, to.as_deref(), terminal).await?;
    tell(to.as_deref(), artifact, terminal);
    Ok(Exit::Ok)
}

fn tell(to: Option<&Path>, artifact: &JobArtifact, terminal: &Terminal) {
    if let Some(path) = to {
        let size = state_words::bytes(artifact.size);
        terminal.say(&format!("{}  {size}", secret_input::shown(path)));
    }
}

/// Fetches those of the latest attempt that left any, each under its name in a folder.
async fn all(
    client: &Client,
    job: &str,
    list: &ArtifactList,
    get: &Get,
    terminal: &Terminal,
) -> Done {
    if get.output.as_deref().is_some_and(is_stdout) {
        let next = format!("delta-ci artifacts get {} NAME -o -", get.job);
        let what = "`-o -` writes one artifact to stdout, and none is named";
        return Err(Failure::new(Exit::Usage, what).next(next));
    }
    let Some(latest) = list.artifacts.iter().map(|it| it.attempt).max() else {
        terminal.say("the job left no artifacts: nothing was fetched");
        return Ok(Exit::Ok);
    };
    let folder = get.output.clone().unwrap_or_else(|| PathBuf::from("."));
    for artifact in list.artifacts.iter().filter(|it| it.attempt == latest) {
        let to = inside(&folder, &artifact.name)?;
        one(client, job, artifact, Some(&to), terminal).await?;
        tell(Some(&to), artifact, terminal);
    }
    Ok(Exit::Ok)
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A path beneath a folder. The name is another's, so it is looked at once more.
pub fn inside(folder: &Path, name: &str) -> Result<PathBuf, Failure> {
    if upload_name(name) {
        Ok(folder.join(name))
    } else {
        Err(Failure::new(
            Exit::Internal,
            format!("`{}` is no name for a file here", sanitize::text(name)),
        )
        .next("name the file to write with --output"))
    }
}

/// Fetches one, whole or not at all; to stdout where no place for it is named.
pub async fn one(
    client: &Client,
    job: &str,
    artifact: &JobArtifact,
    to: Option<&Path>,
    terminal: &Terminal,
) -> Result<(), Failure> {
    let bad = |error: std::io::Error| {
        let what = match to {
            Some(path) => format!("{} cannot be written", secret_input::shown(path)),
            None => "stdout cannot be written".to_owned(),
        };
        Failure::new(Exit::Internal, what).caused_by(&error)
    };
    let mut file = match to {
        None => None,
        Some(path) => {
            let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder).map_err(bad)?;
            // Beside its place, so that it gets its name at once and whole. With the rights of any
            // new file, as the umask has it.
            let fresh = tempfile::Builder::new()
                .permissions(std::fs::Permissions::from_mode(0o666))
                .tempfile_in(folder);
            Some(fresh.map_err(bad)?)
        }
    };
    let path = format!(
        "/api/v1/jobs/{job}/artifacts/{}?attempt={}",
        encoded(&artifact.name),
        artifact.attempt
    );
    let mut response = client.open(&path, &[]).await?;
    let (mut hash, mut size) = (Context::new(&SHA256), 0_u64);
    let bar = bar(artifact, terminal);
    while let Some(piece) = response
        .chunk()
        .await
        .map_err(|error| client.away(&error))?
    {
        hash.update(&piece);
        size += piece.len() as u64;
        match &mut file {
            Some(file) => file.write_all(&piece).map_err(bad)?,
            None => terminal.bytes(&piece),
        }
        bar.set_position(size);
    }
    bar.finish_and_clear();
    let digest = hash.finish();
    let found: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if (size, found.as_str()) != (artifact.size, artifact.sha256.as_str()) {
        let what = format!("`{}` did not arrive whole", sanitize::text(&artifact.name));
        return Err(Failure::new(Exit::Internal, what)
            .because("its bytes are not those that the server stored")
            .next("try again"));
    }
    if let (Some(file), Some(path)) = (file, to) {
        file.persist(path).map_err(|error| bad(error.error))?;
    }
    Ok(())
}

fn bar(artifact: &JobArtifact, terminal: &Terminal) -> ProgressBar {
    if !terminal.live() {
        return ProgressBar::hidden();
    }
    let style = "{msg} {bytes}/{total_bytes} {bytes_per_sec}";
    let bar = bars().add(ProgressBar::new(artifact.size));
    bar.set_style(ProgressStyle::with_template(style).unwrap_or(ProgressStyle::default_bar()));
    bar.set_message(sanitize::text(&artifact.name));
    bar
}

/// A name as one part of a path.
fn encoded(name: &str) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    // T9
    #[test]
    fn a_name_never_leads_out_of_the_folder() {
        let folder = Path::new("out");
        assert_eq!(inside(folder, "a/b").unwrap(), folder.join("a/b"));
        for name in [
            "../x",
            "/etc/passwd",
            "a/../../x",
            "",
            "a//b",
            "c:x",
            "a\\b",
            ".",
        ] {
            assert!(inside(folder, name).is_err(), "{name}");
        }
        assert_eq!(encoded("a b/ü.txt"), "a%20b%2F%C3%BC.txt");
    }
}
