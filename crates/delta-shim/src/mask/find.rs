//! Finding the first of many patterns in a piece of bytes, quickly where there is none.
//!
//! The shortest pattern gives the window by which most of what a job prints is stepped over. What
//! is left is looked up among the sorted patterns.

use std::collections::BTreeSet;

use zeroize::Zeroize;

use super::forms;
use super::lines::Lines;
use super::skips::Skips;

/// The longest window: steps get no longer by more, and tails are compared byte by byte.
const MAX_WINDOW: usize = 32;

/// Everything that is looked for.
pub struct Patterns {
    /// Sorted, so that those with a common beginning are neighbours.
    sorted: Vec<Vec<u8>>,
    skips: Skips,
    /// What is looked for in base64 of several lines.
    lines: Option<Lines>,
}

/// What is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hit {
    pub place: usize,
    /// Bytes of the longest pattern that is there as a whole; 0 when there is none.
    pub length: usize,
    /// What is there goes on to the end, and a longer pattern begins with it.
    pub open: bool,
}

/// Whether more bytes may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum More {
    MayFollow,
    /// The end: a beginning that is long enough counts as a whole.
    End,
}

impl Patterns {
    /// The forms of these values; nothing when there is nothing to look for.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a str>) -> Option<Patterns> {
        let values: Vec<&str> = values.into_iter().collect();
        let all: BTreeSet<Vec<u8>> = values.iter().flat_map(|it| forms::of(it)).collect();
        let sorted: Vec<Vec<u8>> = all.into_iter().collect();
        let window = sorted.iter().map(Vec::len).min()?.min(MAX_WINDOW);
        Some(Patterns {
            skips: Skips::of(&sorted, window),
            lines: Lines::of(values),
            sorted,
        })
    }

    /// Looks through these bytes.
    pub(super) fn search<'a>(&'a self, bytes: &'a [u8], more: More) -> Search<'a> {
        Search {
            patterns: self,
            bytes,
            more,
            ahead: Ahead::Unknown,
        }
    }

    /// What begins at this place.
    fn at(&self, bytes: &[u8], place: usize, more: More) -> Option<Hit> {
        let rest = &bytes[place..];
        let key = &rest[..rest.len().min(self.skips.window())];
        let first = self.sorted.partition_point(|it| it.as_slice() < key);
        let (mut length, mut open) = (0, false);
        for pattern in &self.sorted[first..] {
            if !pattern.starts_with(key) {
                break;
            }
            if rest.len() >= pattern.len() {
                if rest.starts_with(pattern) {
                    length = length.max(pattern.len());
                }
            } else if pattern.starts_with(rest) {
                open = true;
            }
        }
        if open && more == More::End {
            open = false;
            if rest.len() >= forms::MIN_BYTES {
                length = rest.len();
            }
        }
        (length > 0 || open).then_some(Hit {
            place,
            length,
            open,
        })
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> &[Vec<u8>] {
        &self.sorted
    }
}

/// One way through some bytes, from hit to hit.
pub(super) struct Search<'a> {
    patterns: &'a Patterns,
    bytes: &'a [u8],
    more: More,
    ahead: Ahead,
}

/// The next hit that is not broken into lines: many that are may stand before it, and it is looked
/// for once.
#[derive(Clone, Copy)]
enum Ahead {
    Unknown,
    Nothing,
    There(Hit),
}

impl Search<'_> {
    /// The first place from `from` on at which a pattern is, or may be once more bytes are there.
    /// It never goes back.
    pub fn next(&mut self, from: usize) -> Option<Hit> {
        let plain = self.plain(from);
        let limit = plain.map_or(self.bytes.len(), |hit| hit.place + 1);
        let lines = self.patterns.lines.as_ref();
        let broken = lines.and_then(|lines| lines.next(self.bytes, from, limit, self.more));
        match (plain, broken) {
            (Some(plain), Some(broken)) if plain.place == broken.place => Some(Hit {
                place: plain.place,
                length: plain.length.max(broken.length),
                open: plain.open || broken.open,
            }),
            (Some(plain), Some(broken)) if broken.place < plain.place => Some(broken),
            (None, broken) => broken,
            (plain, _) => plain,
        }
    }

    fn plain(&mut self, from: usize) -> Option<Hit> {
        match self.ahead {
            Ahead::Nothing => return None,
            Ahead::There(hit) if hit.place >= from => return Some(hit),
            Ahead::There(_) | Ahead::Unknown => {}
        }
        let at = |place| self.patterns.at(self.bytes, place, self.more);
        let hit = self.patterns.skips.next(self.bytes, from, at);
        self.ahead = hit.map_or(Ahead::Nothing, Ahead::There);
        hit
    }
}

impl Drop for Patterns {
    fn drop(&mut self) {
        self.sorted.zeroize();
    }
}
