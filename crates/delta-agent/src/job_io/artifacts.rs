//! Artifacts: files of the workspace that the job spec names, kept on the server after the work,
//! also after work that failed.
//!
//! Each file is hashed and sent through one descriptor. Its size and hash are declared before its
//! bytes go, and compared at the other end: a file that changes meanwhile is no artifact. Few bytes
//! go in a message, many to an upload that is asked for.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use delta_core::Cause;
use delta_shim::job_files::{FileError, Glob, Matched, Owner, Root, WalkError, Walked};
use delta_wire::agent::proto::{Artifact, CreateUpload};
use delta_wire::runner::{MAX_ARTIFACT_BYTES, upload_name};
use tokio_util::sync::CancellationToken;

use super::transfer::{Patience, Sending, TransferError, hex, size};
use super::{Around, Failed};

/// Bytes that go in a message: the request of an upload would cost more than they do.
const INLINE_BYTES: u64 = 64 * 1024;
/// Artifacts of one attempt: what one result may name.
const MAX_ARTIFACTS: usize = 1000;
/// Bytes that are hashed between two looks at whether to stop.
const HASH_BYTES: usize = 1024 * 1024;

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// Artifacts that the server has.
    pub count: u32,
    pub failed: Option<Failed>,
    /// What is to be known of work that succeeded: patterns that no file matches.
    pub remarks: Vec<String>,
}

/// Keeps what the spec names.
pub(super) async fn keep(around: &Around<'_>) -> Stored {
    let mut stored = Stored::default();
    if around.spec.artifacts.is_empty() {
        return stored;
    }
    let began = Instant::now();
    let (root, walked) = match find(around).await {
        Ok(found) => found,
        Err(failed) => {
            stored.failed = Some(failed);
            return stored;
        }
    };
    stored.remarks = tell(around, &walked);
    let mut bytes = 0;
    for matched in &walked.files {
        if is_secret(around, &matched.path) {
            // The line itself is masked.
            around.log.mark(&format!(
                "warning: no artifact: a secret is in the name `{}`",
                matched.path.escape_debug()
            ));
            continue;
        }
        match one(around, &root, matched, bytes).await {
            Ok(length) => {
                stored.count += 1;
                bytes += length;
            }
            Err(trouble) => {
                let path = &matched.path;
                stored.failed = Some(Failed {
                    cause: match trouble {
                        TransferError::DiskFull => Cause::DiskFull,
                        TransferError::Mistake(_) => Cause::SpecError,
                        _ => Cause::Artifact,
                    },
                    summary: format!("the artifact `{path}` was not kept: {trouble}"),
                });
                break;
            }
        }
    }
    if stored.count > 0 {
        let (count, all) = (stored.count, size(bytes));
        let plural = if count == 1 { "" } else { "s" };
        let took = began.elapsed().as_secs_f64();
        around
            .log
            .mark(&format!("{count} artifact{plural}, {all} in {took:.1}s"));
    }
    stored
}

/// Takes away what an earlier attempt left in a workspace that stays: an artifact is of the attempt
/// that made it, or it is none. What is part of the tree stays.
pub(super) async fn forget(around: &Around<'_>) {
    let Some(copied) = around.folder.copied() else {
        return;
    };
    // A pattern that stands for too much is said when the artifacts are kept.
    let Ok((root, walked)) = find(around).await else {
        return;
    };
    // The repository is made anew anyhow.
    let own = |path: &str| path.split('/').any(|part| part == ".git");
    for matched in walked.files.iter().filter(|it| !own(&it.path)) {
        let path = around.folder.workspace.join(&matched.path);
        if !copied.contains(&path)
            && let Err(error) = root.remove(&matched.path)
        {
            let path = matched.path.escape_debug();
            let text = format!("warning: `{path}` is of an earlier attempt, and stays: {error}");
            around.log.mark(&text);
        }
    }
}

/// Names are shown to whoever may see the run.
fn is_secret(around: &Around<'_>, path: &str) -> bool {
    // Also as it would be written in a list or an address.
    let escaped = path.escape_debug().to_string();
    around.log.redact(path) != path || around.log.redact(&escaped) != escaped
}

async fn find(around: &Around<'_>) -> Result<(Arc<Root>, Walked), Failed> {
    let failed = |cause, words: String| Failed {
        cause,
        summary: format!("artifacts were not kept: {words}"),
    };
    let mut patterns = Vec::new();
    for artifact in &around.spec.artifacts {
        let text = &artifact.path_glob;
        let glob = Glob::parse(text);
        let too_much = || failed(Cause::SpecError, format!("`{text}` stands for too much"));
        patterns.push(glob.ok_or_else(too_much)?);
    }
    let (workspace, stopped) = (around.folder.workspace.clone(), around.stopped.clone());
    let found = tokio::task::spawn_blocking(move || {
        let root = Root::open(&workspace)?;
        let walked = root.walk(&patterns, MAX_ARTIFACTS, &stopped)?;
        Ok::<_, WalkError>((Arc::new(root), walked))
    });
    match found.await {
        Ok(found) => found.map_err(|problem| failed(cause_of(&problem), problem.to_string())),
        Err(problem) => Err(failed(Cause::Artifact, problem.to_string())),
    }
}

/// What is too much for a walk is too much the next time, too.
fn cause_of(problem: &WalkError) -> Cause {
    match problem {
        WalkError::TooMany(_) | WalkError::TooLarge | WalkError::TooWide | WalkError::TooDeep => {
            Cause::SpecError
        }
        WalkError::Stopped | WalkError::Io(_) => Cause::Artifact,
    }
}

/// What is left out is said; the patterns that no file matches, in a few words each.
fn tell(around: &Around<'_>, walked: &Walked) -> Vec<String> {
    for skipped in &walked.skipped {
        let said = skipped.said();
        around.log.mark(&format!("warning: no artifact: {said}"));
    }
    let patterns = around.spec.artifacts.iter().zip(&walked.met);
    let unmet = patterns.filter(|(_, met)| !**met).map(|(artifact, _)| {
        let glob = artifact.path_glob.escape_debug();
        format!("no file matches the artifact `{glob}`")
    });
    let unmet: Vec<String> = unmet.collect();
    for words in &unmet {
        around.log.mark(&format!("warning: {words}"));
    }
    unmet
}

/// A file that is ready to be sent.
struct Ready {
    file: File,
    size: u64,
    sha256: String,
    /// All of it, where it is small.
    small: Option<Bytes>,
}

/// Keeps one file, with so many bytes kept before it.
async fn one(
    around: &Around<'_>,
    root: &Arc<Root>,
    matched: &Matched,
    kept: u64,
) -> Result<u64, TransferError> {
    let name = &matched.path;
    if !upload_name(name) {
        let words = "its name is longer than 255 characters, or has `\\`, `:` or a line end";
        return Err(TransferError::Mistake(words.to_owned()));
    }
    let kind = around.spec.artifacts.get(matched.pattern);
    let kind = kind.map_or_else(String::new, |it| it.kind.clone());
    let ready = prepare(around, root, name, kept).await?;
    let (execution, lease) = (&around.context.execution, around.lease);
    if let Some(bytes) = &ready.small {
        let artifact = Artifact {
            name: name.clone(),
            path: name.clone(),
            content_type: "application/octet-stream".to_owned(),
            data: bytes.clone(),
            upload_url: String::new(),
            kind,
        };
        let link = &around.context.link;
        let mut patience = Patience::new();
        while let Err(error) = link.keep_artifact(execution, lease, artifact.clone()).await {
            patience.after(error.into()).await?;
        }
        return Ok(ready.size);
    }
    let mut patience = Patience::new();
    while let Err(trouble) = upload(around, name, &kind, &ready).await {
        patience.after(trouble).await?;
    }
    Ok(ready.size)
}

/// Asked for again with each try: the one before may have come through.
async fn upload(
    around: &Around<'_>,
    name: &str,
    kind: &str,
    ready: &Ready,
) -> Result<(), TransferError> {
    let wanted = CreateUpload {
        name: name.to_owned(),
        size: ready.size,
        sha256: ready.sha256.clone(),
        kind: kind.to_owned(),
        ..CreateUpload::default()
    };
    let (execution, lease) = (&around.context.execution, around.lease);
    let link = &around.context.link;
    let created = link.create_upload(execution, lease, wanted).await?;
    if created.url.is_empty() {
        return Ok(());
    }
    // Below the server's own address, or nowhere (T17).
    if !created.url.starts_with('/') || created.url.starts_with("//") {
        return Err(TransferError::Refused(
            "the server names a strange place".to_owned(),
        ));
    }
    let sending = Sending {
        around,
        url: &created.url,
        headers: &[],
        file: &ready.file,
        size: ready.size,
        what: &format!("artifact {name}"),
    };
    sending.send().await.map(drop)
}

async fn prepare(
    around: &Around<'_>,
    root: &Arc<Root>,
    name: &str,
    kept: u64,
) -> Result<Ready, TransferError> {
    let (root, name, stopped) = (Arc::clone(root), name.to_owned(), around.stopped.clone());
    let user = around.confinement.user;
    let owner = Owner(user.unwrap_or_else(|| rustix::process::geteuid().as_raw()));
    let read = tokio::task::spawn_blocking(move || {
        let (file, size) = root.file(&name, owner).map_err(trouble)?;
        hashed(file, size, kept, &stopped)
    });
    read.await
        .unwrap_or_else(|problem| Err(TransferError::Refused(problem.to_string())))
}

/// Reads all of a file, unless the server would not take it: one without blocks can be as long as
/// its owner likes, and takes as long to read.
fn hashed(
    mut file: File,
    size: u64,
    kept: u64,
    stopped: &CancellationToken,
) -> Result<Ready, TransferError> {
    if size > MAX_ARTIFACT_BYTES.saturating_sub(kept) {
        return Err(TransferError::Mistake(too_large(size, kept)));
    }
    let mut hash = Context::new(&SHA256);
    let mut small = (size <= INLINE_BYTES).then(Vec::new);
    let (mut buffer, mut seen) = (vec![0; HASH_BYTES.min(size as usize + 1)], 0);
    while seen <= size && !stopped.is_cancelled() {
        let count = match file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        seen += count as u64;
        if let Some(small) = small.as_mut().filter(|_| seen <= INLINE_BYTES) {
            small.extend_from_slice(&buffer[..count]);
        }
    }
    if seen != size {
        return Err(TransferError::Refused(
            "it changes while it is read".to_owned(),
        ));
    }
    Ok(Ready {
        file,
        size,
        sha256: hex(hash.finish().as_ref()),
        small: small.map(Bytes::from),
    })
}

fn too_large(bytes: u64, kept: u64) -> String {
    let (bytes, most) = (size(bytes), size(MAX_ARTIFACT_BYTES));
    let before = match kept {
        0 => String::new(),
        kept => format!(" after {} of others", size(kept)),
    };
    format!("it has {bytes}{before}, and the artifacts of an attempt have at most {most}")
}

fn trouble(error: FileError) -> TransferError {
    match error {
        FileError::Io(error) => error.into(),
        FileError::Foreign => TransferError::Mistake(format!("it {}", FileError::Foreign)),
        // It was a file a moment ago.
        other => TransferError::Refused(format!("it {other}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;

    fn sparse(bytes: u64) -> (tempfile::TempDir, File, u64) {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("disk.img");
        let file = File::create(&path).expect("a file");
        file.set_len(bytes).expect("a length");
        let root = Root::open(place.path()).expect("a root");
        let owner = Owner(rustix::process::geteuid().as_raw());
        let (file, size) = root.file("disk.img", owner).expect("a file");
        (place, file, size)
    }

    // T11
    #[test]
    fn a_file_that_the_server_would_not_take_is_not_read() {
        let stopped = CancellationToken::new();
        for (bytes, kept, words) in [
            (MAX_ARTIFACT_BYTES + 1, 0, "it has 10.7 GB, and"),
            (1 << 43, 0, "it has 8.8 TB, and"),
            (
                2_000_000,
                MAX_ARTIFACT_BYTES - 1_999_999,
                "it has 2.0 MB after 10.7 GB of others, and",
            ),
        ] {
            let (_place, file, size) = sparse(bytes);
            assert_eq!(size, bytes);
            let mut twin = file.try_clone().expect("a descriptor");
            let refused = hashed(file, size, kept, &stopped).map(|it| it.sha256);
            let refused = refused.expect_err("too large");
            assert!(matches!(refused, TransferError::Mistake(_)), "{refused:?}");
            let said = refused.to_string();
            assert!(said.starts_with(words), "{said}");
            assert_eq!(twin.stream_position().expect("a position"), 0, "not read");
        }
        let (_place, file, size) = sparse(2_000_000);
        let ready = hashed(file, size, MAX_ARTIFACT_BYTES - 2_000_000, &stopped);
        assert_eq!(ready.map(|it| it.size), Ok(2_000_000));
    }

    // D10: what will be the same next time is not tried again.
    #[test]
    fn what_the_agent_itself_refuses_is_the_jobs_mistake() {
        for problem in [
            WalkError::TooMany(1000),
            WalkError::TooLarge,
            WalkError::TooWide,
            WalkError::TooDeep,
        ] {
            assert_eq!(cause_of(&problem), Cause::SpecError, "{problem}");
        }
        let broken = WalkError::Io(io::ErrorKind::Other.into());
        assert_eq!(cause_of(&broken), Cause::Artifact);
        assert!(matches!(
            trouble(FileError::Foreign),
            TransferError::Mistake(_)
        ));
        let changed = trouble(FileError::NotRegular("is a folder"));
        assert!(matches!(changed, TransferError::Refused(_)));
    }
}
