//! Finding the first of many patterns in a piece of bytes, quickly where there is none.
//!
//! The shortest pattern gives a window. At each place two bytes are looked at, those at the
//! window's end, and a table says how far the next place is at which a pattern could begin: most
//! of what a job prints is stepped over. What the table lets through is looked up among the
//! sorted patterns.

use std::collections::BTreeSet;

use zeroize::Zeroize;

use super::forms;

/// The longest window: steps get no longer by more, and tails are compared byte by byte.
const MAX_WINDOW: usize = 16;

/// Pairs of bytes.
const PAIRS: usize = 1 << 16;

/// Everything that is looked for.
pub(crate) struct Patterns {
    /// Sorted, so that those with a common beginning are neighbours.
    sorted: Vec<Vec<u8>>,
    window: usize,
    /// By the pair at a window's end: how far to the next window that may hold a beginning.
    steps: Box<[u8]>,
    /// Pairs that a pattern begins with.
    begins: Box<[bool]>,
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
        let all: BTreeSet<Vec<u8>> = values.into_iter().flat_map(forms::of).collect();
        let sorted: Vec<Vec<u8>> = all.into_iter().collect();
        let window = sorted.iter().map(Vec::len).min()?.min(MAX_WINDOW);
        let longest = u8::try_from(window - 1).unwrap_or(u8::MAX);
        let mut steps = vec![longest; PAIRS].into_boxed_slice();
        let mut begins = vec![false; PAIRS].into_boxed_slice();
        for pattern in &sorted {
            begins[pair(pattern, 0)] = true;
            for place in 0..window - 1 {
                let step = &mut steps[pair(pattern, place)];
                let to_end = u8::try_from(window - 2 - place).unwrap_or(0);
                *step = (*step).min(to_end);
            }
        }
        Some(Patterns {
            sorted,
            window,
            steps,
            begins,
        })
    }

    /// The first place from `from` on at which a pattern is, or may be once more bytes are there.
    pub(super) fn next(&self, bytes: &[u8], from: usize, more: More) -> Option<Hit> {
        let mut end = from + self.window - 2;
        while end + 1 < bytes.len() {
            let step = self.steps[pair(bytes, end)];
            if step > 0 {
                end += usize::from(step);
                continue;
            }
            let place = end + 2 - self.window;
            if self.begins[pair(bytes, place)]
                && let Some(hit) = self.at(bytes, place, more)
            {
                return Some(hit);
            }
            end += 1;
        }
        // Less than a window is left.
        let last = bytes.len().saturating_sub(self.window - 1).max(from);
        (last..bytes.len()).find_map(|place| self.at(bytes, place, more))
    }

    /// What begins at this place.
    fn at(&self, bytes: &[u8], place: usize, more: More) -> Option<Hit> {
        let rest = &bytes[place..];
        let key = &rest[..rest.len().min(self.window)];
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

impl Drop for Patterns {
    fn drop(&mut self) {
        self.sorted.zeroize();
    }
}

fn pair(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}
