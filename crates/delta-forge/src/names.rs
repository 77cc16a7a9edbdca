//! Names that strangers choose: refs, commits, headers. They are data: checked for being what they
//! say they are, never read as anything else.

use reqwest::header::HeaderMap;

use crate::BadDelivery;

/// Longer than any ref that a file system could hold.
const MAX_REF: usize = 1024;
/// Longer than any number of a delivery or name of an event.
const MAX_HEADER: usize = 128;

/// Text that is no such name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("it is no ref that git allows")]
    Ref,
    #[error("it is no hash of 40 or 64 hexadecimal digits")]
    Commit,
}

/// A whole hash of a commit, in small letters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commit(String);

impl Commit {
    /// All zeros, which is how forges spell "none", is no commit.
    pub fn parse(text: &str) -> Result<Commit, BadName> {
        let digits = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let whole = matches!(text.len(), 40 | 64) && text.bytes().all(digits);
        if whole && !is_none(text) {
            Ok(Commit(text.to_owned()))
        } else {
            Err(BadName::Commit)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How forges spell that there is no commit.
pub(crate) fn is_none(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'0')
}

/// A full ref: `refs/heads/…` or `refs/tags/…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ref(String);

impl Ref {
    /// git's own rules (`git check-ref-format`). A name with `$(…)` or a quote in it is good.
    pub fn parse(text: &str) -> Result<Ref, BadName> {
        let short = text
            .strip_prefix("refs/heads/")
            .or_else(|| text.strip_prefix("refs/tags/"))
            .ok_or(BadName::Ref)?;
        let bad = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
        let part =
            |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
        let good = text.len() <= MAX_REF
            && !short.contains(bad)
            && !short.contains("..")
            && !short.contains("@{")
            && !short.ends_with('.')
            && short != "@"
            && short.split('/').all(part);
        if good {
            Ok(Ref(text.to_owned()))
        } else {
            Err(BadName::Ref)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_tag(&self) -> bool {
        self.0.starts_with("refs/tags/")
    }
}

/// A header's value, where it is one word.
pub(crate) fn header<'h>(
    headers: &'h HeaderMap,
    name: &'static str,
) -> Result<&'h str, BadDelivery> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    let word = |value: &&str| {
        !value.is_empty()
            && value.len() <= MAX_HEADER
            && value.bytes().all(|byte| byte.is_ascii_graphic())
    };
    value.filter(word).ok_or(BadDelivery::Header(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_branch_names_are_names() {
        // T14, T15: git allows them, so they pass, as data.
        for name in [
            "refs/heads/main",
            "refs/heads/$(id)",
            "refs/heads/`id`;rm",
            "refs/heads/-upload-pack=x",
            "refs/heads/a\"b'c",
            "refs/tags/v1.0",
            "refs/heads/ümlaut",
        ] {
            assert_eq!(Ref::parse(name).map(|parsed| parsed.0), Ok(name.to_owned()));
        }
    }

    #[test]
    fn what_git_does_not_allow_is_no_ref() {
        for name in [
            "main",
            "refs/heads/",
            "refs/pull/1/head",
            "refs/heads/a..b",
            "refs/heads/a b",
            "refs/heads/a\nb",
            "refs/heads/.a",
            "refs/heads/a.lock",
            "refs/heads/a/",
            "refs/heads//a",
            "refs/heads/a.",
            "refs/heads/a@{1}",
            "refs/heads/a:b",
            "refs/heads/a\u{7f}",
        ] {
            assert_eq!(Ref::parse(name), Err(BadName::Ref), "{name:?}");
        }
        let long = format!("refs/heads/{}", "x".repeat(MAX_REF));
        assert_eq!(Ref::parse(&long), Err(BadName::Ref));
    }

    #[test]
    fn a_commit_is_a_whole_hash() {
        assert!(Commit::parse(&"a1".repeat(20)).is_ok());
        assert!(Commit::parse(&"a1".repeat(32)).is_ok());
        for text in [
            "",
            "abc",
            &"0".repeat(40),
            &"A1".repeat(20),
            &"g1".repeat(20),
        ] {
            assert_eq!(Commit::parse(text), Err(BadName::Commit), "{text}");
        }
    }
}
