//! What happens to attempts, told to whoever watches: a terminal, a test. Observers see, they never
//! decide; a slow one slows the attempt, so they must return at once.

use crate::work::{Ended, Identity};

/// One thing that happened.
#[derive(Debug)]
pub enum Progress<'a> {
    /// The lease is acknowledged and work begins.
    Started { job: &'a Identity },
    /// A step begins; `index` counts from 0, `text` is what people call it.
    Step {
        job: &'a Identity,
        index: usize,
        count: usize,
        text: &'a str,
    },
    /// A line the job printed, without its end, cut when it is very long.
    Output { job: &'a Identity, line: &'a [u8] },
    /// The work ended here. The server may yet judge otherwise.
    Ended { job: &'a Identity, ended: &'a Ended },
}

/// Somebody who watches.
pub trait Observer: Send + Sync {
    fn progress(&self, progress: Progress<'_>);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Observer for Silent {
    fn progress(&self, _: Progress<'_>) {}
}

/// A line longer than this is handed over in parts: a program that never prints a newline must not
/// grow our memory.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    open: Vec<u8>,
}

impl Lines {
    pub fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in part.chunks(MAX_LINE_BYTES) {
                if self.open.len() + piece.len() > MAX_LINE_BYTES {
                    line(&self.open);
                    self.open.clear();
                }
                self.open.extend_from_slice(piece);
            }
            if self.open.last() == Some(&b'\n') {
                self.open.pop();
                line(&self.open);
                self.open.clear();
            }
        }
    }

    pub fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.open.is_empty() {
            line(&self.open);
            self.open.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_join_across_pieces_and_the_last_needs_no_newline() {
        let mut lines = Lines::default();
        let mut seen: Vec<String> = Vec::new();
        let mut note = |line: &[u8]| seen.push(String::from_utf8_lossy(line).into_owned());
        lines.push(b"one\ntw", &mut note);
        lines.push(b"o\n\nthr", &mut note);
        lines.push(b"ee", &mut note);
        lines.finish(&mut note);
        assert_eq!(seen, ["one", "two", "", "three"]);
    }

    #[test]
    fn a_line_without_end_stays_bounded() {
        let mut lines = Lines::default();
        let mut longest = 0;
        for _ in 0..100 {
            lines.push(&[b'x'; 10_000], |line| longest = longest.max(line.len()));
            assert!(lines.open.len() <= MAX_LINE_BYTES);
        }
        assert!(longest > 0 && longest <= MAX_LINE_BYTES);
    }
}
