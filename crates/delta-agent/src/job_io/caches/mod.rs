//! Caches: folders that a job finds again. Restored before the work, by an exact key or the newest
//! of a prefix; saved after work that succeeded, where there was no exact hit.
//!
//! A cache is a convenience: one that is not to be had, or is not what it should be, is a miss, and
//! one that cannot be saved is a line in the log. Only a full disk ends the attempt, as that, and
//! one that is there by half and cannot be taken back, as `cache`.

mod archive;
mod install;
mod key;
mod restore;
mod save;
mod time_saved;
mod unpack;

use std::time::Duration;

use delta_core::Cause;
use delta_shim::job_files::{Owner, Root};
use delta_wire::api::{CacheChecked, CacheFound, CacheView, FindCache, cache_key};
use delta_wire::job_spec::{CacheSpec, HOME_PREFIX};
use reqwest::{Method, Response};
use serde::{Deserialize, Serialize};

use self::archive::{ArchiveError, HOME, WORKSPACE};
pub(super) use self::restore::restore;
pub(super) use self::save::save;
use super::transfer::{Patience, TransferError, judged};
use super::{Around, Failed};

/// Bytes of an answer about caches.
const MAX_ANSWER: usize = 64 * 1024;

/// What a cache of the spec was looked for by, and whether exactly that was found.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Looked {
    pub key: String,
    pub exact: bool,
    /// Exactly that is there, could not be restored, and stays: nothing else can be saved.
    #[serde(default)]
    pub blocked: bool,
    /// What was restored for it, exactly or not.
    #[serde(default)]
    pub hit: Option<Hit>,
}

/// A cache that was restored, as far as it tells how much time that saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hit {
    /// How long the same job's work took when it was saved.
    pub work: Option<Duration>,
    /// How long it took to find, fetch and unpack it.
    pub restored_in: Duration,
}

/// Where a path of a cache lies.
type CachePlace = (&'static str, String);

async fn find(around: &Around<'_>, wanted: &FindCache) -> Result<Option<CacheView>, TransferError> {
    let client = around.context.courier.client()?;
    let path = format!("/api/v1/runner/jobs/{}/caches/find", around.identity.job_id);
    let mut patience = Patience::new();
    loop {
        let request = client.make(Method::POST, &path, around.lease)?;
        let answer = match request.json(wanted).send().await {
            Ok(answer) => judged(answer).await,
            Err(error) => Err(error.into()),
        };
        match answer {
            Ok(answer) => return Ok(read::<CacheFound>(answer).await?.cache),
            Err(trouble) => patience.after(trouble).await?,
        }
    }
}

/// Tells the server of one that could not be restored; says whether it has removed it, or has none.
async fn check(around: &Around<'_>, id: &str) -> Result<bool, TransferError> {
    let client = around.context.courier.client()?;
    let job = &around.identity.job_id;
    let path = format!("/api/v1/runner/jobs/{job}/caches/{id}/check");
    let request = client.make(Method::POST, &path, around.lease)?;
    match judged(request.send().await?).await {
        Ok(answer) => Ok(read::<CacheChecked>(answer).await?.removed),
        Err(TransferError::NotFound) => Ok(true),
        Err(trouble) => Err(trouble),
    }
}

async fn read<T: serde::de::DeserializeOwned>(mut answer: Response) -> Result<T, TransferError> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_ANSWER {
            return Err(TransferError::Refused("the answer is too long".to_owned()));
        }
    }
    serde_json::from_slice(&body)
        .map_err(|error| TransferError::Refused(format!("the answer cannot be read: {error}")))
}

fn trouble(error: ArchiveError) -> TransferError {
    match error {
        ArchiveError::Io(error) => error.into(),
        other => TransferError::Refused(other.to_string()),
    }
}

fn owner(around: &Around<'_>) -> Owner {
    let user = around.confinement.user;
    Owner(user.unwrap_or_else(|| rustix::process::geteuid().as_raw()))
}

const SHARED_HOME: &str =
    "lies in the agent's own HOME, which stays between jobs; it is left alone";

/// The paths of a cache: of the workspace, or below a HOME that is the job's own; and those that
/// are left alone. None lies inside another, so that nothing is packed twice.
fn places(
    around: &Around<'_>,
    cache: &CacheSpec,
) -> Result<(Vec<CachePlace>, Vec<String>), Failed> {
    let (mut places, mut left) = (Vec::new(), Vec::new());
    for path in &cache.paths {
        let (part, inside) = match path.strip_prefix(HOME_PREFIX) {
            Some(inside) => (HOME, inside),
            None => (WORKSPACE, path.as_str()),
        };
        let parts = inside.split('/').filter(|part| !matches!(*part, "" | "."));
        let parts: Vec<&str> = parts.collect();
        if path.starts_with('/') || parts.is_empty() || parts.contains(&"..") {
            return Err(Failed {
                cause: Cause::SpecError,
                summary: format!("the cache path `{path}` is no folder of the workspace or of ~"),
            });
        }
        if part == HOME && !around.folder.home.is_dir() {
            left.push(path.clone());
            continue;
        }
        places.push((part, parts.join("/")));
    }
    Ok((apart(places), left))
}

/// Without those that lie inside others.
fn apart(mut places: Vec<CachePlace>) -> Vec<CachePlace> {
    let mut kept: Vec<CachePlace> = Vec::new();
    // Whatever lies inside another is longer; of the same, the first counts.
    let order = places.clone();
    places.sort_by_key(|(_, path)| path.len());
    for (part, path) in places {
        let inside = |(of, above): &CachePlace| {
            let rest = path.strip_prefix(above.as_str());
            *of == part && rest.is_some_and(|it| it.is_empty() || it.starts_with('/'))
        };
        if !kept.iter().any(inside) {
            kept.push((part, path));
        }
    }
    kept.sort_by_key(|place| order.iter().position(|it| it == place));
    kept
}

/// The key and the prefixes, resolved in the workspace as it is before the work.
async fn wanted(around: &Around<'_>, cache: &CacheSpec) -> Result<FindCache, Failed> {
    let failed = |summary: String| Failed {
        cause: Cause::SpecError,
        summary,
    };
    let mut texts = vec![cache.key.clone()];
    texts.extend(cache.restore_keys.iter().cloned());
    let (workspace, stopped) = (around.folder.workspace.clone(), around.stopped.clone());
    // Nothing has run here yet: what is in it is the agent's.
    let owner = Owner(rustix::process::geteuid().as_raw());
    let resolved = tokio::task::spawn_blocking(move || {
        let root = Root::open(&workspace).map_err(|error| error.to_string())?;
        let each = texts.iter().map(|text| {
            let resolved = key::resolve(text, &root, owner, &stopped);
            resolved.map_err(|error| format!("the cache key `{text}`: {error}"))
        });
        each.collect::<Result<Vec<_>, String>>()
    });
    let resolved = resolved.await.map_err(|error| failed(error.to_string()))?;
    let mut keys = Vec::new();
    for it in resolved.map_err(failed)? {
        for word in it.missing {
            let name = cache.kind.escape_debug();
            around.log.mark(&format!(
                "cache {name}: no file for {{{word}}}: `none` stands for it"
            ));
        }
        if !cache_key(&it.key) {
            return Err(failed(format!("the cache key `{}` is too long", cache.key)));
        }
        keys.push(it.key);
    }
    let key = keys.remove(0);
    Ok(FindCache {
        key,
        restore_keys: keys,
        saving: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_inside_another_is_that_ones() {
        let place = |part: &'static str, path: &str| (part, path.to_owned());
        let all = vec![
            place(WORKSPACE, "z/deps/a"),
            place(WORKSPACE, "z/deps"),
            place(HOME, "z/deps/a"),
            place(WORKSPACE, "z/deps"),
            place(WORKSPACE, "z/deps-more"),
            place(WORKSPACE, "a"),
        ];
        let wanted = [
            place(WORKSPACE, "z/deps"),
            place(HOME, "z/deps/a"),
            place(WORKSPACE, "z/deps-more"),
            place(WORKSPACE, "a"),
        ];
        assert_eq!(apart(all), wanted);
    }
}
