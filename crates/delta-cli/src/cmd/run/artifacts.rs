//! What jobs of a local run left: fetched from the server inside this process before it is gone,
//! and the end says where it is. Where the history stays, they are part of it.

use std::path::PathBuf;

use delta_wire::api::{ArtifactList, JobArtifact};

use super::outbox::Outbox;
use crate::client::Client;
use crate::cmd::artifacts;
use crate::failure::{Failure, internal};
use crate::secret_input;
use crate::state_words;
use crate::terminal::Terminal;

/// Where artifacts go.
pub enum Place {
    /// A folder that somebody named; what else is in it stays.
    Named(Outbox),
    /// Beside those of earlier runs, whose artifacts these replace.
    Usual(Outbox),
    /// They stay in the history.
    History(PathBuf),
    Nowhere,
}

/// What became of them.
#[derive(Default)]
pub struct Artifacts {
    /// For people; nothing where there are none.
    pub said: Option<String>,
    pub list: Vec<JobArtifact>,
    /// Where they are, where that is a folder: each in one of its job's name.
    pub folder: Option<PathBuf>,
}

impl Artifacts {
    /// They are not where they should be, for this reason.
    pub fn not_kept(failure: &Failure) -> Artifacts {
        Artifacts {
            said: Some(failure.text()),
            ..Artifacts::default()
        }
    }
}

/// Fetches them, and says what is to be said at the end.
pub async fn keep(
    client: &Client,
    run: &str,
    place: &Place,
    terminal: &Terminal,
) -> Result<Artifacts, Failure> {
    let list: ArtifactList = client.get(&format!("/api/v1/runs/{run}/artifacts")).await?;
    let list = latest(list.artifacts);
    if list.is_empty() {
        return Ok(Artifacts::default());
    }
    let without_folder = |list, said| Artifacts {
        said: Some(said),
        list,
        folder: None,
    };
    let count = state_words::count(list.len() as u64, "artifact");
    let size = state_words::bytes(list.iter().map(|it| it.size).sum());
    let folder = match place {
        Place::History(data) => {
            let next = format!(
                "delta-ci artifacts latest --data {}",
                secret_input::shown(data)
            );
            return Ok(without_folder(list, format!("{count}, {size}: {next}")));
        }
        Place::Nowhere => {
            let next = "--artifacts DIR keeps them";
            let said = format!("{count}, {size}, not kept: {next}");
            return Ok(without_folder(list, said));
        }
        Place::Usual(outbox) | Place::Named(outbox) => {
            let failed = internal("the artifacts of the last run cannot be removed");
            outbox.replace_earlier().map_err(failed)?;
            &outbox.folder
        }
    };
    for artifact in &list {
        let job = folder.join(folder_name(&artifact.job));
        let to = artifacts::inside(&job, &artifact.name)?;
        artifacts::one(client, &artifact.job_id, artifact, Some(&to), terminal).await?;
    }
    let kept = match place {
        Place::Usual(_) => " (until the next run)",
        _ => "",
    };
    let shown = secret_input::shown(folder);
    Ok(Artifacts {
        said: Some(format!("{count}, {size}, in {shown}{kept}")),
        list,
        folder: Some(folder.clone()),
    })
}

/// Those of the last attempt of each job that left any.
fn latest(all: Vec<JobArtifact>) -> Vec<JobArtifact> {
    let last = |job: &str| {
        let of_job = all.iter().filter(|it| it.job_id == job);
        of_job.map(|it| it.attempt).max()
    };
    let kept = all.iter().filter(|it| Some(it.attempt) == last(&it.job_id));
    kept.cloned().collect()
}

/// The name of a job as one part of a path, so that people know it again.
fn folder_name(job: &str) -> String {
    let plain = |c: char| match c {
        '/' | '\0' => '_',
        c => c,
    };
    match job.trim_start_matches('.') {
        "" => "_".to_owned(),
        name => name.chars().map(plain).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_named_as_its_job_and_leads_nowhere_else() {
        assert_eq!(folder_name("unit (os=linux)"), "unit (os=linux)");
        assert_eq!(folder_name("../a/b"), "_a_b");
        assert_eq!(folder_name(".."), "_");
    }

    #[test]
    fn a_job_that_was_tried_again_has_those_of_its_last_attempt() {
        let artifact = |job: &str, attempt, name: &str| JobArtifact {
            job_id: job.to_owned(),
            job: job.to_owned(),
            attempt,
            kind: String::new(),
            name: name.to_owned(),
            size: 1,
            sha256: String::new(),
        };
        let all = vec![
            artifact("a", 1, "x"),
            artifact("a", 2, "x"),
            artifact("b", 1, "y"),
        ];
        let kept = latest(all);
        let kept: Vec<_> = kept
            .iter()
            .map(|it| (it.job.as_str(), it.attempt))
            .collect();
        assert_eq!(kept, [("a", 2), ("b", 1)]);
    }
}
