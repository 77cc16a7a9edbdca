//! What git says while it works, for the log: lines as they come, counters now and then, never
//! without end; and the last of them, for whoever asks why.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Lines of one call that reach the log; a server may say what it likes.
const MAX_LINES: usize = 200;
/// Bytes of a line.
const MAX_LINE: usize = 500;
/// Between two states of the same counter.
const BETWEEN_COUNTS: Duration = Duration::from_secs(5);
/// Lines that tell why git failed.
const LAST_LINES: usize = 8;

/// What was said so far.
pub struct CallOutput {
    open: Vec<u8>,
    /// The last byte was a carriage return; with a line feed after it, it ends a line.
    returned: bool,
    lines: usize,
    counted: Option<Instant>,
    last: VecDeque<String>,
}

impl CallOutput {
    pub fn new() -> CallOutput {
        CallOutput {
            open: Vec::new(),
            returned: false,
            lines: 0,
            counted: None,
            last: VecDeque::new(),
        }
    }

    /// Takes bytes in, and hands out the lines that are worth showing.
    pub fn hear(&mut self, bytes: &[u8], now: Instant, mut show: impl FnMut(&str)) {
        for byte in bytes {
            if std::mem::take(&mut self.returned) && *byte != b'\n' {
                self.count(now, &mut show);
            }
            match byte {
                b'\n' => self.line(&mut show),
                b'\r' => self.returned = true,
                _ if self.open.len() < MAX_LINE => self.open.push(*byte),
                _ => {}
            }
        }
    }

    /// The last lines, the oldest first.
    pub fn end(mut self, mut show: impl FnMut(&str)) -> Vec<String> {
        if !self.open.is_empty() {
            self.line(&mut show);
        }
        self.last.into()
    }

    fn line(&mut self, show: &mut impl FnMut(&str)) {
        let text = self.take();
        self.show(&text, show);
        if !text.is_empty() {
            self.last.push_back(text);
        }
        if self.last.len() > LAST_LINES {
            self.last.pop_front();
        }
    }

    /// A line that will be written over: one is enough for a while.
    fn count(&mut self, now: Instant, show: &mut impl FnMut(&str)) {
        let text = self.take();
        let due = |since: Instant| now.duration_since(since) >= BETWEEN_COUNTS;
        // The first one only begins the waiting: most counters are through at once.
        let counted = *self.counted.get_or_insert(now);
        if due(counted) {
            self.counted = Some(now);
            self.show(&text, show);
        }
    }

    fn show(&mut self, text: &str, show: &mut impl FnMut(&str)) {
        if text.is_empty() {
            return;
        }
        self.lines += 1;
        match self.lines.cmp(&MAX_LINES) {
            std::cmp::Ordering::Less => show(text),
            std::cmp::Ordering::Equal => show("(git says more, which is left out)"),
            std::cmp::Ordering::Greater => {}
        }
    }

    fn take(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.open).trim_end().to_owned();
        self.open.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_pass_and_counters_are_thinned() {
        let (mut output, mut shown) = (CallOutput::new(), Vec::new());
        let start = Instant::now();
        for second in 0..12 {
            let now = start + Duration::from_secs(second);
            output.hear(format!("at {second}%\r").as_bytes(), now, |line| {
                shown.push(line.to_owned());
            });
        }
        output.hear(b"done\r\nfatal: no", start, |line| {
            shown.push(line.to_owned())
        });
        let last = output.end(|line| shown.push(line.to_owned()));
        assert_eq!(shown, ["at 5%", "at 10%", "done", "fatal: no"]);
        assert_eq!(last, ["done", "fatal: no"]);
    }

    #[test]
    fn a_server_that_talks_without_end_is_cut() {
        let (mut output, mut shown) = (CallOutput::new(), 0);
        let line = [&[b'x'; 10_000][..], b"\n"].concat();
        for _ in 0..1_000 {
            output.hear(&line, Instant::now(), |line| {
                assert!(line.len() <= MAX_LINE);
                shown += 1;
            });
        }
        assert_eq!(shown, MAX_LINES);
        assert_eq!(output.end(|_| {}).len(), LAST_LINES);
    }
}
