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

/// Bytes that are gone through at once, in so many parts: large enough to be worth it, small
/// enough that little was done in vain where secrets are many.
const BLOCK: usize = 4096;
const PARTS: usize = 4;

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
    pub(super) fn next(&self, bytes: &[u8], mut from: usize, more: More) -> Option<Hit> {
        while from + BLOCK + self.window <= bytes.len() {
            if let Some(hit) = self.in_block(bytes, from, more) {
                return Some(hit);
            }
            from += BLOCK;
        }
        let mut end = from + self.window - 2;
        while end + 1 < bytes.len() {
            match self.steps[pair(bytes, end)] {
                0 => {
                    let hit = self.candidate(bytes, end, more);
                    if hit.is_some() {
                        return hit;
                    }
                    end += 1;
                }
                step => end += usize::from(step),
            }
        }
        // Less than a window is left.
        let last = bytes.len().saturating_sub(self.window - 1).max(from);
        (last..bytes.len()).find_map(|place| self.at(bytes, place, more))
    }

    /// The first place of a block. Each step waits for the table's answer to the one before, so
    /// several parts of the block are gone through side by side.
    fn in_block(&self, bytes: &[u8], from: usize, more: More) -> Option<Hit> {
        const PART: usize = BLOCK / PARTS;
        let mut ends: [usize; PARTS] =
            std::array::from_fn(|part| from + part * PART + self.window - 2);
        let mut stops = ends.map(|end| end + PART);
        let mut first = None;
        loop {
            let mut busy = false;
            for part in 0..PARTS {
                let end = ends[part];
                if end >= stops[part] {
                    continue;
                }
                busy = true;
                let step = self.steps[pair(bytes, end)];
                ends[part] = end + usize::from(step.max(1));
                if step == 0
                    && let Some(hit) = self.candidate(bytes, end, more)
                {
                    // Nothing behind it counts any more.
                    first = Some(hit);
                    stops[part..].fill(0);
                }
            }
            if !busy {
                return first;
            }
        }
    }

    /// What begins at the window that ends with this pair.
    fn candidate(&self, bytes: &[u8], end: usize, more: More) -> Option<Hit> {
        let place = end + 2 - self.window;
        match self.begins[pair(bytes, place)] {
            true => self.at(bytes, place, more),
            false => None,
        }
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
