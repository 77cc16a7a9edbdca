//! Inputs: artifacts of jobs that this one needs, brought into the workspace before the work.
//!
//! Which there are, the server says; what a job asks for and does not get is said, and ends the
//! attempt. Names come from another job, so each file is made beneath the workspace, through no
//! link, and is what was stored, to the byte.

use std::time::Instant;

use delta_core::Cause;
use delta_shim::job_files::{Glob, Root};
use delta_wire::api::{InputArtifact, InputList};
use delta_wire::job_spec::InputSpec;
use delta_wire::runner::upload_name;
use reqwest::Method;

use super::transfer::{Patience, Receiving, TransferError, judged, size};
use super::{Around, Failed};
use crate::http::Requests;

/// Bytes of the list: a thousand artifacts of each of two hundred jobs.
const MAX_LIST_BYTES: usize = 128 * 1024 * 1024;

/// Brings what the spec asks for.
pub(super) async fn fetch(around: &Around<'_>) -> Result<(), Failed> {
    if around.spec.inputs.is_empty() {
        return Ok(());
    }
    let began = Instant::now();
    let list = list(around)
        .await
        .map_err(|trouble| failed("inputs", &trouble))?;
    let root = Root::open(&around.folder.workspace);
    let root = root.map_err(|error| failed("inputs", &error.into()))?;
    let (mut count, mut bytes) = (0, 0);
    for input in &around.spec.inputs {
        let found = chosen(input, &list)?;
        for artifact in found {
            let what = format!("input {} of {}", artifact.name, artifact.job);
            let fetched = one(around, &root, input, artifact, &what).await;
            fetched.map_err(|trouble| failed(&what, &trouble))?;
            count += 1;
            bytes += artifact.size;
        }
    }
    let (all, took) = (size(bytes), began.elapsed().as_secs_f64());
    let plural = if count == 1 { "" } else { "s" };
    around
        .log
        .mark(&format!("{count} input{plural}, {all} in {took:.1}s"));
    Ok(())
}

/// What an entry of the spec means. Nothing at all is a mistake of the job's: the list has come,
/// the jobs in it are over, and what they left will be the same next time. It is none where the
/// other job did not succeed, or its run is deleted: whoever wrote this one could not know.
fn chosen<'a>(input: &InputSpec, list: &'a InputList) -> Result<Vec<&'a InputArtifact>, Failed> {
    let job = &input.job;
    let glob = match &input.path_glob {
        None => None,
        Some(text) => Some(Glob::parse(text).ok_or_else(|| Failed {
            cause: Cause::SpecError,
            summary: format!("the input `{text}` stands for too much"),
        })?),
    };
    let fits = |it: &&InputArtifact| {
        it.job == *job && glob.as_ref().is_none_or(|glob| glob.matches(&it.name))
    };
    let found: Vec<&InputArtifact> = list.inputs.iter().filter(fits).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let nothing = match &input.path_glob {
        Some(glob) => format!("no artifact that matches `{glob}`"),
        None => "no artifact".to_owned(),
    };
    let (cause, summary) = if list.deleted.contains(job) {
        let summary = format!(
            "what the job `{job}` left is deleted: the run that it was kept from is older than \
             runs are kept"
        );
        (Cause::Artifact, summary)
    } else if list.not_succeeded.contains(job) {
        let summary = format!("the job `{job}` did not succeed, and left {nothing}");
        (Cause::Artifact, summary)
    } else {
        let summary = format!("the job `{job}` left {nothing}");
        (Cause::SpecError, summary)
    };
    Err(Failed { cause, summary })
}

fn failed(what: &str, trouble: &TransferError) -> Failed {
    let cause = match trouble {
        TransferError::DiskFull => Cause::DiskFull,
        _ => Cause::Artifact,
    };
    Failed {
        cause,
        summary: format!("{what} could not be fetched: {trouble}"),
    }
}

async fn list(around: &Around<'_>) -> Result<InputList, TransferError> {
    let client = around.context.courier.client()?;
    let mut patience = Patience::new();
    loop {
        match list_once(around, &client).await {
            Ok(list) => return Ok(list),
            Err(trouble) => patience.after(trouble).await?,
        }
    }
}

async fn list_once(around: &Around<'_>, client: &Requests) -> Result<InputList, TransferError> {
    let path = format!("/api/v1/runner/jobs/{}/inputs", around.identity.job_id);
    let request = client.make(Method::GET, &path, around.lease)?;
    let mut answer = judged(request.send().await?).await?;
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_LIST_BYTES {
            return Err(TransferError::Refused("the list is too long".to_owned()));
        }
    }
    serde_json::from_slice(&body)
        .map_err(|error| TransferError::Refused(format!("the list cannot be read: {error}")))
}

async fn one(
    around: &Around<'_>,
    root: &Root,
    input: &InputSpec,
    artifact: &InputArtifact,
    what: &str,
) -> Result<(), TransferError> {
    if !upload_name(&artifact.name) {
        return Err(TransferError::Refused(
            "it has a name that no file may have".to_owned(),
        ));
    }
    let path = match &input.into {
        Some(folder) => format!("{folder}/{}", artifact.name),
        None => artifact.name.clone(),
    };
    let client = around.context.courier.client()?;
    let mut patience = Patience::new();
    let receiving = Receiving {
        around,
        size: artifact.size,
        sha256: &artifact.sha256,
        what,
    };
    while let Err(trouble) = once(&client, root, artifact, &path, &receiving).await {
        // Nothing half done stays.
        let _ = root.remove(&path);
        patience.after(trouble).await?;
    }
    Ok(())
}

async fn once(
    client: &Requests,
    root: &Root,
    artifact: &InputArtifact,
    path: &str,
    receiving: &Receiving<'_>,
) -> Result<(), TransferError> {
    let (job, id) = (&receiving.around.identity.job_id, &artifact.id);
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if !id.chars().all(plain) {
        return Err(TransferError::Refused(
            "the server names a strange place".to_owned(),
        ));
    }
    let url = format!("/api/v1/runner/jobs/{job}/inputs/{id}");
    let request = client.make(Method::GET, &url, receiving.around.lease)?;
    let answer = judged(request.send().await?).await?;
    let file = root.create(path, 0o644)?;
    receiving.receive(answer, file).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(path_glob: Option<&str>) -> InputSpec {
        InputSpec {
            job: "build".to_owned(),
            path_glob: path_glob.map(str::to_owned),
            into: None,
        }
    }

    /// Nothing, of jobs that came to this.
    fn nothing(deleted: &[&str], not_succeeded: &[&str]) -> InputList {
        let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        InputList {
            inputs: Vec::new(),
            deleted: names(deleted),
            not_succeeded: names(not_succeeded),
        }
    }

    // D10: what would be the same next time is not tried again.
    #[test]
    fn an_input_that_a_job_did_not_leave_is_a_mistake_and_one_that_does_not_come_is_not() {
        let list = nothing(&["other"], &["other"]);
        for (glob, words) in [
            (None, "the job `build` left no artifact"),
            (
                Some("dist/*"),
                "the job `build` left no artifact that matches `dist/*`",
            ),
        ] {
            let missing = chosen(&spec(glob), &list).expect_err("nothing is there");
            assert_eq!(missing.cause, Cause::SpecError);
            assert_eq!(missing.summary, words);
        }
        for trouble in [
            TransferError::NotFound,
            TransferError::Again("reset".to_owned()),
        ] {
            assert_eq!(failed("input a", &trouble).cause, Cause::Artifact);
        }
    }

    // D10
    #[test]
    fn what_another_job_could_not_leave_or_is_deleted_is_no_mistake() {
        for (list, words) in [
            (
                nothing(&[], &["build"]),
                "the job `build` did not succeed, and left no artifact that matches `dist/*`",
            ),
            (
                nothing(&["build"], &["build"]),
                "what the job `build` left is deleted: the run that it was kept from is older \
                 than runs are kept",
            ),
        ] {
            let missing = chosen(&spec(Some("dist/*")), &list).expect_err("nothing is there");
            assert_eq!(missing.cause, Cause::Artifact);
            assert_eq!(missing.summary, words);
        }
        let mut list = nothing(&[], &["build"]);
        list.inputs.push(InputArtifact {
            id: "1".to_owned(),
            job: "build".to_owned(),
            name: "dist/app".to_owned(),
            size: 1,
            sha256: String::new(),
        });
        let found = chosen(&spec(None), &list).expect("what it did leave");
        assert_eq!(found.len(), 1);
    }
}
