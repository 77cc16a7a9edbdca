//! Stepping through bytes to the places where a pattern may begin.
//!
//! At each place three bytes are looked at, those at a window's end, and a table says how far the
//! next place is at which a pattern could begin: most of what a job prints is stepped over. Two
//! bytes would not do: of the usual pairs nearly all are somewhere in some form of some secret, and
//! the steps would be short.

use super::find::Hit;
use super::grams::{Pairs, Table, pair};

/// Bytes that are gone through at once, in so many parts: large enough to be worth it, small
/// enough that little was done in vain where secrets are many.
const BLOCK: usize = 4096;
const PARTS: usize = 4;
const PART: usize = BLOCK / PARTS;

/// Bytes that are looked at together.
const GRAM: usize = 3;

/// The table for patterns that all have at least a window's length.
pub(super) struct Skips {
    window: usize,
    /// By the bytes at a window's end: how far to the next window that may hold a beginning.
    steps: Table<u8>,
    /// Pairs that a pattern begins with.
    begins: Pairs,
}

impl Skips {
    pub fn of(patterns: &[Vec<u8>], window: usize) -> Skips {
        // Those of one secret have much in common; what is too small is only slower.
        let longest = u8::try_from(window + 1 - GRAM).unwrap_or(u8::MAX);
        let mut steps = Table::new(window * patterns.len() / 2, longest);
        let mut begins = Pairs::default();
        for pattern in patterns {
            begins.add(pair(pattern, 0));
            for (place, gram) in pattern[..window].windows(GRAM).enumerate() {
                let step = steps.at_mut(shifted([gram[0], gram[1], gram[2], 0]));
                let to_end = u8::try_from(window - GRAM - place).unwrap_or(u8::MAX);
                *step = (*step).min(to_end);
            }
        }
        Skips {
            window,
            steps,
            begins,
        }
    }

    pub fn window(&self) -> usize {
        self.window
    }

    /// The first hit from `from` on.
    pub fn next(
        &self,
        bytes: &[u8],
        mut from: usize,
        at: impl Fn(usize) -> Option<Hit>,
    ) -> Option<Hit> {
        while from + BLOCK + self.window <= bytes.len() {
            if let Some(hit) = self.in_block(bytes, from, &at) {
                return Some(hit);
            }
            from += BLOCK;
        }
        let hit = self.in_part(bytes, (from + self.window, bytes.len()), &at);
        if hit.is_some() {
            return hit;
        }
        // No more than a window is left.
        let last = bytes.len().saturating_sub(self.window).max(from);
        (last..bytes.len()).find_map(|place| {
            let known = place + 1 == bytes.len() || self.begins.has(pair(bytes, place));
            known.then(|| at(place)).flatten()
        })
    }

    /// The first hit of a block. Each step waits for the table's answer to the one before, so
    /// several parts of the block are gone through side by side.
    fn in_block(
        &self,
        bytes: &[u8],
        from: usize,
        at: &impl Fn(usize) -> Option<Hit>,
    ) -> Option<Hit> {
        let mut ends: [usize; PARTS] = std::array::from_fn(|part| from + part * PART + self.window);
        let stops = ends.map(|end| end + PART);
        'together: loop {
            let steps = ends.map(|end| self.step(bytes, end));
            let (mut stands, mut done) = (false, false);
            for part in 0..PARTS {
                ends[part] += steps[part];
                stands |= steps[part] == 0;
                done |= ends[part] >= stops[part];
            }
            if stands {
                for part in (0..PARTS).filter(|part| steps[*part] == 0) {
                    if self.candidate(bytes, ends[part], at).is_some() {
                        break 'together;
                    }
                    ends[part] += 1;
                    done |= ends[part] >= stops[part];
                }
            }
            if done {
                break;
            }
        }
        // What is left of each.
        let mut parts = ends.into_iter().zip(stops);
        parts.find_map(|part| self.in_part(bytes, part, at))
    }

    /// The first hit of windows that end in this range. Each of them has a byte behind it.
    fn in_part(
        &self,
        bytes: &[u8],
        (mut end, stop): (usize, usize),
        at: &impl Fn(usize) -> Option<Hit>,
    ) -> Option<Hit> {
        while end < stop {
            match self.step(bytes, end) {
                0 => {
                    let hit = self.candidate(bytes, end, at);
                    if hit.is_some() {
                        return hit;
                    }
                    end += 1;
                }
                step => end += step,
            }
        }
        None
    }

    /// How far it is from the window that ends before `end`.
    #[inline]
    fn step(&self, bytes: &[u8], end: usize) -> usize {
        let last = &bytes[end - GRAM..end + 1];
        usize::from(self.steps.at(shifted([last[0], last[1], last[2], last[3]])))
    }

    /// What begins at the window that ends before `end`.
    fn candidate(
        &self,
        bytes: &[u8],
        end: usize,
        at: &impl Fn(usize) -> Option<Hit>,
    ) -> Option<Hit> {
        let place = end - self.window;
        if self.begins.has(pair(bytes, place)) {
            at(place)
        } else {
            None
        }
    }
}

/// The first three of four bytes: reading four and losing one is quicker than reading three.
#[inline]
fn shifted(bytes: [u8; GRAM + 1]) -> u32 {
    u32::from_le_bytes(bytes) << 8
}
