//! Stepping through bytes to the places where a pattern may begin.
//!
//! At each place two bytes are looked at, those at a window's end, and a table says how far the
//! next place is at which a pattern could begin: most of what a job prints is stepped over.

use super::find::Hit;

/// Bytes that are gone through at once, in so many parts: large enough to be worth it, small
/// enough that little was done in vain where secrets are many.
const BLOCK: usize = 4096;
const PARTS: usize = 4;

/// Pairs of bytes.
const PAIRS: usize = 1 << 16;

/// The table for patterns that all have at least a window's length.
pub(super) struct Skips {
    window: usize,
    /// By the pair at a window's end: how far to the next window that may hold a beginning.
    steps: Box<[u8]>,
    /// Pairs that a pattern begins with.
    begins: Pairs,
}

impl Skips {
    pub fn of<'a>(patterns: impl Iterator<Item = &'a [u8]>, window: usize) -> Skips {
        let longest = u8::try_from(window - 1).unwrap_or(u8::MAX);
        let mut steps = vec![longest; PAIRS].into_boxed_slice();
        let mut begins = Pairs::default();
        for pattern in patterns {
            begins.add(pair(pattern, 0));
            for place in 0..window - 1 {
                let step = &mut steps[pair(pattern, place)];
                let to_end = u8::try_from(window - 2 - place).unwrap_or(0);
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
        let mut end = from + self.window - 2;
        while end + 1 < bytes.len() {
            match self.steps[pair(bytes, end)] {
                0 => {
                    let hit = self.candidate(bytes, end, &at);
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
        (last..bytes.len()).find_map(at)
    }

    /// The first place of a block. Each step waits for the table's answer to the one before, so
    /// several parts of the block are gone through side by side.
    fn in_block(
        &self,
        bytes: &[u8],
        from: usize,
        at: &impl Fn(usize) -> Option<Hit>,
    ) -> Option<Hit> {
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
                    && let Some(hit) = self.candidate(bytes, end, at)
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
    fn candidate(
        &self,
        bytes: &[u8],
        end: usize,
        at: &impl Fn(usize) -> Option<Hit>,
    ) -> Option<Hit> {
        let place = end + 2 - self.window;
        match self.begins.has(pair(bytes, place)) {
            true => at(place),
            false => None,
        }
    }
}

/// A set of pairs, small enough to stay near the processor.
pub(super) struct Pairs(Box<[u64]>);

impl Default for Pairs {
    fn default() -> Pairs {
        Pairs(vec![0; PAIRS / 64].into_boxed_slice())
    }
}

impl Pairs {
    pub fn add(&mut self, pair: usize) {
        self.0[pair / 64] |= 1 << (pair % 64);
    }

    pub fn has(&self, pair: usize) -> bool {
        self.0[pair / 64] & (1 << (pair % 64)) != 0
    }
}

pub(super) fn pair(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}
