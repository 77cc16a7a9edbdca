//! Caches of a job: under which key, and which folders. Where a path may lie and what a key may
//! speak of is said here, for whoever writes a spec and for the agent that carries it out.

use serde::Serialize;

use super::job_io::{is_inside, object};
use super::{MAX_PATH, MAX_PATTERNS, MAX_WORD, Strangers};
use crate::fields::Node;
use crate::invalid::{Invalid, Problems};

/// Prefixes that a cache may be restored by.
pub(crate) const MAX_RESTORE_KEYS: usize = 16;

/// What a path of the job's own HOME begins with.
pub const HOME_PREFIX: &str = "~/";

/// Files to restore before and save after the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheSpec {
    #[serde(rename = "type")]
    pub kind: String,
    pub key: String,
    pub paths: Vec<String>,
    /// Prefixes of keys to fall back on, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restore_keys: Vec<String>,
}

/// A part of a key, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart<'t> {
    Text(&'t str),
    Os,
    Arch,
    /// Of the lock files that are known.
    LockHash,
    /// Of the files that a pattern means.
    Hash(&'t str),
}

/// Why a text is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    #[error("`{{{0}}}` is not known; known are {{hash:FILE}}, {{lock_hash}}, {{os}} and {{arch}}")]
    Unknown(String),
    #[error("a brace is not closed")]
    Open,
    #[error("`{{hash:{0}}}` leaves the work folder")]
    Leaves(String),
}

/// The parts of a key, in order.
pub fn key_parts(text: &str) -> Result<Vec<KeyPart<'_>>, BadKey> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('{') {
        // Braces of a pattern may stand inside.
        let end = closing(after).ok_or(BadKey::Open)?;
        let (word, behind) = (&after[..end], &after[end + 1..]);
        rest = behind;
        parts.push(KeyPart::Text(before));
        parts.push(match (word, word.strip_prefix("hash:")) {
            ("os", _) => KeyPart::Os,
            ("arch", _) => KeyPart::Arch,
            ("lock_hash", _) => KeyPart::LockHash,
            (_, Some(pattern)) if is_inside(pattern) => KeyPart::Hash(pattern),
            (_, Some(pattern)) => return Err(BadKey::Leaves(pattern.to_owned())),
            (word, None) => return Err(BadKey::Unknown(word.to_owned())),
        });
    }
    parts.push(KeyPart::Text(rest));
    parts.retain(|part| *part != KeyPart::Text(""));
    Ok(parts)
}

fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

pub(super) fn cache(node: Node<'_>, strangers: Strangers) -> Result<CacheSpec, Problems> {
    object(node, strangers, |f, p| {
        let kind = p.note(f.may("type", |it| it.text(MAX_WORD)));
        let key = p.note(f.must("key", key_text));
        let paths = p.note_all(f.must_all("paths", paths));
        let restore_keys = p.note_all(f.may_all("restore_keys", |it| {
            it.each_all(MAX_RESTORE_KEYS, |it| key_text(it).map_err(Problems::from))
        }));
        Some(CacheSpec {
            kind: kind?.unwrap_or_else(|| "files".to_owned()),
            key: key?,
            paths: paths?,
            restore_keys: restore_keys?.unwrap_or_default(),
        })
    })
}

fn key_text(node: Node<'_>) -> Result<String, Invalid> {
    let text = node.text(MAX_PATH)?;
    match key_parts(&text) {
        Ok(_) => Ok(text),
        Err(why) => Err(Invalid::here(why.to_string())),
    }
}

fn paths(node: Node<'_>) -> Result<Vec<String>, Problems> {
    let paths = node.each_all(MAX_PATTERNS, |it| path(it).map_err(Problems::from))?;
    if paths.is_empty() {
        Err(Invalid::here("is empty: there is nothing to save").into())
    } else {
        Ok(paths)
    }
}

/// Something of the workspace, or of the job's own HOME, and not all of it: a folder that the work
/// itself stands in cannot be moved to its place.
fn path(node: Node<'_>) -> Result<String, Invalid> {
    let path = node.text(MAX_PATH)?;
    let inner = path.strip_prefix(HOME_PREFIX).unwrap_or(&path);
    let mut parts = inner.split('/');
    if is_inside(inner) && parts.any(|part| !matches!(part, "" | ".")) {
        Ok(path)
    } else {
        Err(Invalid::here(
            "must be a folder or file of the workspace, or of the job's own HOME (`~/…`), \
             without `..`",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobSpec;

    fn refused(cache: &str) -> Option<String> {
        let text = format!(r#"{{"steps":["a"],"caches":[{cache}]}}"#);
        let read = JobSpec::parse(text.as_bytes());
        read.err().map(|it| it.to_string())
    }

    #[test]
    fn a_path_stays_in_the_workspace_or_in_the_jobs_own_home() {
        for path in [
            "../up", "/abs", "a/../b", "~/../x", "~//x", "~/", ".", "./", "a\\u0000",
        ] {
            let said = refused(&format!(r#"{{"key":"k","paths":["a","{path}"]}}"#));
            let said = said.unwrap_or_else(|| panic!("{path} is taken"));
            assert!(
                said.starts_with("caches[0].paths[1]: must be a folder"),
                "{said}"
            );
        }
        for path in ["node_modules", "~/.npm", "a/.b/..c", "./target", "~"] {
            assert_eq!(
                refused(&format!(r#"{{"key":"k","paths":["{path}"]}}"#)),
                None
            );
        }
    }

    #[test]
    fn a_key_speaks_of_what_is_known() {
        let parts = key_parts("a-{os}-{hash:{Cargo,x/*}.lock}").unwrap();
        assert_eq!(
            parts,
            [
                KeyPart::Text("a-"),
                KeyPart::Os,
                KeyPart::Text("-"),
                KeyPart::Hash("{Cargo,x/*}.lock"),
            ]
        );
        for (key, words) in [
            (
                "{branch}",
                "caches[0].key: `{branch}` is not known; known are {hash:FILE}",
            ),
            ("a{os", "caches[0].key: a brace is not closed"),
            (
                "{hash:../x}",
                "caches[0].key: `{hash:../x}` leaves the work folder",
            ),
            (
                "{hash:/etc/passwd}",
                "caches[0].key: `{hash:/etc/passwd}` leaves",
            ),
        ] {
            let said = refused(&format!(r#"{{"key":"{key}","paths":["a"]}}"#)).unwrap();
            assert!(said.starts_with(words), "{said}");
            let again = format!(r#"{{"key":"k","restore_keys":["{key}"],"paths":["a"]}}"#);
            assert!(
                refused(&again)
                    .unwrap()
                    .starts_with("caches[0].restore_keys[0]: ")
            );
        }
    }
}
