//! `delta-ci init`: what was found here, written down as a pipeline file to edit.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use delta_planner::{FILE_NAME, Folder};

use crate::exit::Exit;
use crate::failure::{Done, Failure, internal};
use crate::secret_input;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  delta-ci init                        writes ./.delta-ci.yaml
  delta-ci init --print                shows it and writes nothing
  delta-ci init --force                over the one that is there

The file says what `delta-ci plan --all` shows. Where there are several packages, `if: changed(...)`
leaves out jobs of those that a change does not concern, as discovery does without the file.
Where nothing is found that is known, the file names what was seen and has a job to be edited.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder to look at
    #[arg(value_name = "PATH", default_value = ".")]
    path: PathBuf,
    /// Replace a pipeline file that is there
    #[arg(long)]
    force: bool,
    /// To stdout, not into the file
    #[arg(long)]
    print: bool,
}

pub fn run(args: Args, terminal: &Terminal) -> Done {
    let tree = Folder::tree(&args.path).map_err(|error| {
        let what = format!("cannot look at {}", secret_input::shown(&args.path));
        Failure::new(Exit::NotFound, what)
            .caused_by(&error)
            .next("name a folder that is there: delta-ci init PATH")
    })?;
    let (text, jobs) = match delta_planner::discover(&tree) {
        Ok(found) => {
            let text = delta_planner::written(&found).map_err(|why| {
                Failure::new(Exit::Refused, "this is too much for one pipeline file")
                    .caused_by(&why)
                    .next("delta-ci run needs none: it finds the same jobs each time")
            })?;
            (text, found.pipeline().jobs.len())
        }
        Err(empty) => (delta_planner::skeleton(&empty), 0),
    };
    if args.print {
        terminal.bytes(text.as_bytes());
        return Ok(Exit::Ok);
    }
    let path = args.path.join(FILE_NAME);
    let shown = secret_input::shown(&path);
    let mut options = OpenOptions::new();
    options.write(true);
    if args.force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let mut file = match options.open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(
                Failure::new(Exit::Refused, format!("{shown} is there already"))
                    .next("--print shows what would be written, --force replaces it"),
            );
        }
        Err(error) => return Err(internal(format!("cannot write {shown}"))(error)),
    };
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    written.map_err(internal(format!("cannot write {shown}")))?;
    if terminal.json {
        terminal.value(&serde_json::json!({"file": shown, "jobs": jobs}));
    } else if jobs == 0 {
        let words = "nothing was found that is known; its one job fails until you say what it does";
        terminal.say(&format!("{shown}: {words}"));
    } else {
        terminal.say(&format!("{shown}: {jobs} jobs; delta-ci plan shows them"));
    }
    Ok(Exit::Ok)
}
