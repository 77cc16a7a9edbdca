//! Masking: what a job prints goes through here before it reaches a disk, and every form of every
//! secret in it becomes `***` (D8, D14, T6).
//!
//! It works on pieces of a stream. Bytes are held back only while the end of what came could be
//! the beginning of a secret, and for as long as that takes: no pause lets them go, or a secret
//! that is printed in two halves would be seen. They go when other bytes follow, and at a mark and
//! at the end of the log, where nothing can continue them; what is held then and is a beginning of
//! some length is masked like a whole. Every byte of every occurrence is masked, also where
//! occurrences overlap, and neighbours become one mask.

mod find;
mod forms;
mod grams;
mod lines;
mod skips;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use zeroize::Zeroize;

pub use self::find::Patterns;
use self::find::{Hit, More};

/// What is seen instead.
pub(crate) const MASK: &[u8] = b"***";

/// Bytes that are looked at together with what was held back: enough to see what that is, few
/// enough to copy.
const JOINED: usize = 1024;

/// Masks one stream.
pub struct Masker {
    patterns: Option<Arc<Patterns>>,
    /// What came and may not be shown yet.
    held: Vec<u8>,
    /// Where the last mask ends, counted from the first held byte; nothing when something was
    /// shown after it.
    masked_to: Option<usize>,
    out: Vec<u8>,
}

impl Masker {
    pub fn new(patterns: Option<Arc<Patterns>>) -> Masker {
        Masker {
            patterns,
            held: Vec::new(),
            masked_to: None,
            out: Vec::new(),
        }
    }

    /// Takes the next bytes of the stream; what may be shown now, in two pieces.
    pub fn push<'a>(&'a mut self, mut bytes: &'a [u8]) -> [&'a [u8]; 2] {
        self.out.clear();
        let Some(patterns) = self.patterns.clone() else {
            return [&self.out, bytes];
        };
        if !self.held.is_empty() || self.masked_to.is_some() {
            let (joined, rest) = bytes.split_at(bytes.len().min(JOINED));
            self.held.extend_from_slice(joined);
            let work = std::mem::take(&mut self.held);
            self.mask(&patterns, &work, More::MayFollow);
            if self.masked_to.is_some() || self.held.len() > joined.len() {
                self.held.extend_from_slice(rest);
                let work = std::mem::take(&mut self.held);
                self.mask(&patterns, &work, More::MayFollow);
                return [&self.out, b""];
            }
            // What is held now came just now, and need not be copied.
            bytes = &bytes[joined.len() - self.held.len()..];
            self.held.clear();
        }
        // Nearly always there is nothing to mask, and nothing is copied.
        match patterns.search(bytes, More::MayFollow).next(0) {
            None => [&self.out, bytes],
            Some(hit) if hit.length == 0 => {
                self.held.extend_from_slice(&bytes[hit.place..]);
                [&self.out, &bytes[..hit.place]]
            }
            Some(_) => {
                self.mask(&patterns, bytes, More::MayFollow);
                [&self.out, b""]
            }
        }
    }

    /// The stream is interrupted or ends: what was held back.
    pub fn finish(&mut self) -> &[u8] {
        let work = std::mem::take(&mut self.held);
        self.out.clear();
        if let Some(patterns) = self.patterns.clone() {
            self.mask(&patterns, &work, More::End);
        }
        self.masked_to = None;
        &self.out
    }

    /// Masks a text of ours.
    pub fn text(patterns: &Arc<Patterns>, text: &str) -> String {
        let masked = Masker::whole(patterns, text.as_bytes());
        String::from_utf8_lossy(&masked).into_owned()
    }

    /// Masks a text whose end is missing: what may be the beginning of a secret there goes, too.
    pub fn beginning(patterns: &Arc<Patterns>, text: &str) -> String {
        let mut masker = Masker::new(Some(Arc::clone(patterns)));
        let shown = masker.push(text.as_bytes()).concat();
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// Masks bytes that nothing precedes or follows.
    pub fn whole(patterns: &Arc<Patterns>, bytes: &[u8]) -> Vec<u8> {
        let mut masker = Masker::new(Some(Arc::clone(patterns)));
        let mut out = masker.push(bytes).concat();
        out.extend_from_slice(masker.finish());
        out
    }

    /// Adds to `out` what may be shown of `work`, and holds the rest.
    fn mask(&mut self, patterns: &Patterns, work: &[u8], more: More) {
        let (mut from, mut shown) = (0, 0);
        let mut search = patterns.search(work, more);
        loop {
            let hit = search.next(from);
            let place = hit.map_or(work.len(), |hit| hit.place);
            let plain = shown.max(self.masked_to.unwrap_or(0));
            if place > plain {
                self.out.extend_from_slice(&work[plain..place]);
                (shown, self.masked_to) = (place, None);
            }
            if let Some(hit) = hit.filter(|hit| hit.length > 0) {
                let end = place + hit.length;
                match &mut self.masked_to {
                    Some(to) => *to = end.max(*to),
                    None => {
                        self.out.extend_from_slice(MASK);
                        self.masked_to = Some(end);
                    }
                }
            }
            match hit {
                Some(Hit { open: false, .. }) => from = place + 1,
                Some(Hit { open: true, .. }) | None => {
                    self.held.extend_from_slice(&work[place..]);
                    self.masked_to = self.masked_to.map(|to| to - place);
                    return;
                }
            }
        }
    }
}

/// Bytes of a job, and perhaps of its secrets.
impl Drop for Masker {
    fn drop(&mut self) {
        self.held.zeroize();
        self.out.zeroize();
    }
}
