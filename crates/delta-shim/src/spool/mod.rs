//! The spool: the log of one attempt on disk, bytes in order of arrival, marks between steps, and a
//! quota. Memory stays small whatever the job prints, because the disk is the buffer.
//!
//! What is in the file never changes: it may have been read. So the file grows up to a place short
//! of the quota, and what comes then waits in a ring beside it (see [`tail`]) for the end:
//! all of it follows where it fits, otherwise a line that says how much is missing, and the newest
//! bytes.

mod tail;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

use self::tail::Tail;
use crate::complaints::complain;
use crate::mask::{Masker, Patterns};
use crate::step::Step;

/// Bytes of an earlier log read at once.
const READ_BYTES: usize = 64 * 1024;

/// Characters of a step shown in its mark.
const MAX_MARK_CHARS: usize = 200;

/// The part of the quota that is kept for the end of a log, and the most of it: tens of thousands
/// of lines, in which a failure says what it is.
const TAIL_SHARE: u64 = 4;
const MAX_TAIL: u64 = 16 * 1024 * 1024;

/// How much was written, and whether it is everything the job printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSize {
    /// Bytes in the file.
    pub bytes: u64,
    /// Bytes beyond the quota, between the log's beginning and its end: they are no part of it.
    pub dropped: u64,
    /// Bytes of the log that the disk did not take.
    #[serde(default)]
    pub lost: u64,
    /// SHA-256 of the whole log in hex, with what the disk did not take; absent while it grows, and
    /// when nobody knows whether this is all of it.
    pub sha256: Option<String>,
}

/// The writing end of a log.
pub struct Spool {
    file: File,
    quota: u64,
    size: LogSize,
    hash: digest::Context,
    path: PathBuf,
    /// What waits for the end, once there is something.
    tail: Option<Tail>,
    /// What is in the file ends with a line.
    file_at_line_start: bool,
    /// The disk failed: what follows is counted and not written, or there would be a gap.
    broken: bool,
    at_line_start: bool,
    masker: Masker,
    patterns: Option<Arc<Patterns>>,
    since: Since,
}

/// What came since the step began, or since the log was opened.
#[derive(Default)]
struct Since {
    bytes: u64,
    /// Some of it is the job's own.
    printed: bool,
    /// Lines of ours in it.
    marks: Vec<String>,
}

impl Spool {
    /// Makes a file, or goes on with what is in one. It has no more than `quota` bytes, but for
    /// marks of ours at its end.
    pub fn open(path: &Path, quota: u64) -> io::Result<Spool> {
        let mut options = OpenOptions::new();
        options.append(true).read(true).create(true).mode(0o600);
        let mut spool = Spool {
            file: options.open(path)?,
            quota,
            size: LogSize::default(),
            hash: digest::Context::new(&digest::SHA256),
            path: path.to_owned(),
            tail: None,
            file_at_line_start: true,
            broken: false,
            at_line_start: true,
            masker: Masker::new(None),
            patterns: None,
            since: Since::default(),
        };
        spool.take_in()?;
        Ok(spool)
    }

    /// Goes on after a log that ended, of which all is there: what was dropped before stays so.
    pub fn reopen(path: &Path, quota: u64, ended: &LogSize) -> io::Result<Spool> {
        let mut spool = Spool::open(path, quota)?;
        spool.size.dropped = ended.dropped;
        Ok(spool)
    }

    /// What is in the file counts, for the length and for the hash.
    fn take_in(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        // A device has no length, and may have no end.
        let length = self.file.metadata()?.len();
        let mut earlier = (&self.file).take(length);
        loop {
            let count = earlier.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            self.hash.update(&buffer[..count]);
            self.size.bytes += count as u64;
            self.at_line_start = buffer[count - 1] == b'\n';
        }
    }

    /// The number of bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.size.bytes
    }

    /// From here on nothing of this gets into it: what is written, counted and hashed is masked.
    pub fn mask(&mut self, patterns: Option<Arc<Patterns>>) {
        self.release(&mut |_| {});
        self.masker = Masker::new(patterns.clone());
        self.patterns = patterns;
    }

    /// Bytes the job printed. Some may be held back; see [`crate::mask`].
    pub fn output(&mut self, bytes: &[u8]) {
        self.output_seen(bytes, &mut |_| {});
    }

    /// Bytes the job printed; `seen` hears what came of them once secrets are masked.
    pub fn output_seen(&mut self, bytes: &[u8], seen: &mut dyn FnMut(&[u8])) {
        let mut masker = std::mem::replace(&mut self.masker, Masker::new(None));
        for shown in masker.push(bytes) {
            seen(shown);
            self.keep(shown);
        }
        self.masker = masker;
    }

    /// Nothing continues what was printed so far: what was held back is written.
    pub fn release(&mut self, seen: &mut dyn FnMut(&[u8])) {
        let mut masker = std::mem::replace(&mut self.masker, Masker::new(None));
        let shown = masker.finish();
        if !shown.is_empty() {
            seen(shown);
            self.keep(shown);
        }
        self.masker = masker;
    }

    /// Masked bytes: into the file up to the place where the end of the log begins to wait.
    fn keep(&mut self, bytes: &[u8]) {
        self.since.printed |= !bytes.is_empty();
        if self.tail.is_some() {
            return self.add(bytes);
        }
        let head = self.quota - (self.quota / TAIL_SHARE).min(MAX_TAIL);
        let room = head.saturating_sub(self.size.bytes + self.size.lost);
        let fits = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let (now, later) = bytes.split_at(fits);
        self.add(now);
        if !later.is_empty() {
            let room = self.quota.saturating_sub(self.size.bytes + self.size.lost);
            self.tail = Some(Tail::beside(&self.path, room));
            self.file_at_line_start = self.at_line_start;
            self.add(later);
        }
    }

    /// The next bytes of the log, wherever they are kept for now.
    fn add(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else {
            return;
        };
        self.since.bytes += bytes.len() as u64;
        match &mut self.tail {
            Some(tail) => {
                tail.push(bytes);
                self.at_line_start = *last == b'\n';
            }
            None => self.write(bytes),
        }
    }

    /// Writes what waited for the end of the log.
    fn end_waiting(&mut self) {
        let Some(tail) = self.tail.take() else {
            return;
        };
        let mut at = tail.begins();
        if at > 0 {
            self.size.dropped += at;
            self.at_line_start = self.file_at_line_start;
            let quota = self.quota;
            self.mark_unmasked(&format!(
                "{at} bytes were dropped here: a log may have {quota} bytes"
            ));
        }
        loop {
            let piece = tail.piece(at, tail.came());
            if piece.is_empty() {
                break;
            }
            at += piece.len() as u64;
            self.write(&piece);
        }
        // What the disk does not give back.
        self.size.dropped += tail.came() - at;
    }

    /// The last bytes since the step began, as many as were asked for or there are.
    pub(crate) fn last_bytes(&self, count: u64) -> Vec<u8> {
        let count = count.min(self.since.bytes);
        let waiting = self.tail.as_ref().map(|tail| tail.last(count));
        let waiting = waiting.unwrap_or_default();
        let gap = self.tail.as_ref().is_some_and(|tail| tail.dropped() > 0);
        let before = count
            .saturating_sub(waiting.len() as u64)
            .min(self.size.bytes);
        let mut last = vec![0; usize::try_from(before).unwrap_or(0)];
        let read = self.file.read_exact_at(&mut last, self.size.bytes - before);
        if gap || read.is_err() {
            last.clear();
        }
        last.extend_from_slice(&waiting);
        last
    }

    /// Nothing was printed since the step began.
    pub(crate) fn is_silent(&self) -> bool {
        !self.since.printed
    }

    /// Whether a line since the step began is ours. A job may print what looks like one.
    pub(crate) fn is_mark(&self, line: &str) -> bool {
        self.since.marks.iter().any(|mark| mark == line)
    }

    /// A line of ours between the job's lines.
    pub fn mark(&mut self, text: &str) {
        self.release(&mut |_| {});
        match self.patterns.clone() {
            Some(patterns) => self.mark_unmasked(&Masker::text(&patterns, text)),
            None => self.mark_unmasked(text),
        }
    }

    fn mark_unmasked(&mut self, text: &str) {
        if self.tail.as_ref().is_some_and(Tail::is_closed) {
            self.end_waiting();
        }
        let cut = text.char_indices().nth(MAX_MARK_CHARS);
        let text = match cut {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text.to_owned(),
        };
        let before = if self.at_line_start { "" } else { "\n" };
        let line = format!("--- {text}");
        self.add(format!("{before}{line}\n").as_bytes());
        self.since.marks.push(line);
    }

    /// The mark before a step: its number, and its name or first line.
    pub(crate) fn step(&mut self, number: usize, step: &Step) {
        self.mark(&format!("step {number}: {}", step.label()));
        self.since = Since::default();
    }

    /// Everything so far is in the file, so that another may go on with it. What was dropped.
    pub fn settle(&mut self, seen: &mut dyn FnMut(&[u8])) -> u64 {
        self.release(seen);
        self.end_waiting();
        self.size.dropped
    }

    /// What another dropped of it before.
    pub(crate) fn dropped_before(&mut self, bytes: u64) {
        self.size.dropped += bytes;
    }

    /// Ends the log.
    pub fn finish(mut self) -> LogSize {
        self.settle(&mut |_| {});
        self.size.sha256 = Some(hex(self.hash.finish().as_ref()));
        self.size
    }

    /// The job goes on without its log rather than dying of a full disk.
    fn write(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.at_line_start = bytes.last() == Some(&b'\n');
        if self.broken {
            self.size.lost += bytes.len() as u64;
            return;
        }
        match self.file.write_all(bytes) {
            Ok(()) => self.size.bytes += bytes.len() as u64,
            Err(problem) => {
                complain(&format!("the log cannot be written: {problem}"));
                // What is in the file after a partial write is not known: its length is asked for.
                let length = self.file.metadata().map(|meta| meta.len());
                let known = length.unwrap_or(self.size.bytes).max(self.size.bytes);
                let written = (known - self.size.bytes).min(bytes.len() as u64);
                self.size.bytes += written;
                self.size.lost += bytes.len() as u64 - written;
                self.broken = true;
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(script: &str) -> Step {
        Step {
            script: script.to_owned(),
            argv: None,
            workdir: None,
            goes_on: false,
            name: None,
            timeout: None,
            when: delta_wire::step::StepWhen::Success,
            env: Vec::new(),
            shell: None,
            failure_allowed: false,
            report: None,
        }
    }

    fn written(quota: u64, fill: impl FnOnce(&mut Spool)) -> (String, LogSize) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = Spool::open(&path, quota).expect("a log");
        fill(&mut log);
        let size = log.finish();
        let text = std::fs::read_to_string(&path).expect("text");
        assert_eq!(text.len() as u64, size.bytes);
        let whole = digest::digest(&digest::SHA256, text.as_bytes());
        assert_eq!(size.sha256, Some(hex(whole.as_ref())));
        (text, size)
    }

    #[test]
    fn a_mark_begins_a_line_of_its_own() {
        let (text, _) = written(1000, |log| {
            log.step(1, &step("\n  make\nmake test\n"));
            log.output(b"no newline");
            log.step(2, &step("true"));
        });
        assert_eq!(text, "--- step 1: make …\nno newline\n--- step 2: true\n");
    }

    // I25
    #[test]
    fn a_log_that_is_too_long_keeps_its_beginning_and_its_end() {
        let lines: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let quota = lines.len() as u64 / 2;
        for piece in [1, 100, 5000, lines.len()] {
            let (text, size) = written(quota, |log| {
                for bytes in lines.as_bytes().chunks(piece) {
                    log.output(bytes);
                }
                log.mark("step 1 ended with exit code 1");
            });
            let (head, rest) = text.split_once("--- ").expect("a mark");
            let (mark, end) = rest.split_once('\n').expect("a line");
            let head = head.strip_suffix('\n').expect("a line of its own");
            assert!(lines.starts_with(head), "{head}");
            assert_eq!(head.len() as u64, quota - quota / TAIL_SHARE);
            let end = end.strip_suffix("--- step 1 ended with exit code 1\n");
            let end = end.expect("the last mark");
            assert!(lines.ends_with(end) && end.starts_with("line "), "{end}");
            assert!(end.len() > 1000, "{}", end.len());
            let dropped = lines.len() - head.len() - end.len();
            assert_eq!(size.dropped, dropped as u64);
            let said = format!("{dropped} bytes were dropped here: a log may have {quota} bytes");
            assert_eq!(mark, said);
        }
    }

    #[test]
    fn a_log_as_long_as_it_may_be_is_whole() {
        for (length, dropped) in [(99, false), (100, false), (101, true)] {
            let bytes = vec![b'x'; length];
            let (text, size) = written(100, |log| {
                for bytes in bytes.chunks(7) {
                    log.output(bytes);
                }
            });
            assert_eq!(size.dropped > 0, dropped, "{length}");
            assert_eq!(text.as_bytes() == bytes, !dropped, "{text}");
        }
    }

    #[test]
    fn after_its_end_only_our_marks_are_added() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = Spool::open(&path, 100).expect("a log");
        log.output(&[b'x'; 1000]);
        let ended = log.finish();
        let mut log = Spool::reopen(&path, 100, &ended).expect("a log");
        log.mark("tests: 1 passed");
        log.output(b"and more of the job's");
        log.mark("the end");
        let size = log.finish();
        let text = std::fs::read_to_string(&path).expect("text");
        let wanted = "--- tests: 1 passed\n--- 21 bytes were dropped here: a log may have 100 \
                      bytes\n--- the end\n";
        assert!(text.ends_with(wanted), "{text}");
        assert_eq!(size.dropped, ended.dropped + 21);
    }

    #[test]
    fn the_last_bytes_are_known_wherever_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut log = Spool::open(&folder.path().join("log"), 100).expect("a log");
        log.output(&[b'a'; 70]);
        assert_eq!(log.last_bytes(3), b"aaa");
        log.output(&[b'b'; 10]);
        assert_eq!(log.last_bytes(12), b"aabbbbbbbbbb");
        assert_eq!(log.last_bytes(1000).len(), 80);
        log.output(&[b'c'; 100]);
        assert_eq!(log.last_bytes(1000), [b'c'; 25]);
    }

    #[test]
    fn secrets_reach_neither_the_file_nor_its_length_nor_its_hash() {
        // D8, T6: `written` compares length and hash with what is in the file.
        let patterns = Patterns::of(["s3cret-value"]).map(Arc::new);
        let (text, size) = written(1000, |log| {
            log.mask(patterns.clone());
            log.output(b"it is s3cr");
            log.output(b"et-value, and s3c");
            log.step(2, &step("echo s3cret-value"));
            log.output(b"s3cret-va");
        });
        assert_eq!(text, "it is ***, and s3c\n--- step 2: echo ***\n***");
        assert_eq!(size.dropped, 0);
    }

    #[test]
    fn a_log_is_gone_on_with() {
        let (text, size) = written(100, |log| {
            log.output(b"before\n");
            assert_eq!(log.settle(&mut |_| {}), 0);
            let path = log_path(log);
            let mut next = Spool::open(&path, 100).expect("a log");
            assert_eq!(next.bytes(), 7);
            next.dropped_before(5);
            next.output(b"the work");
            *log = next;
            log.output(b"!");
        });
        assert_eq!(text, "before\nthe work!");
        assert_eq!(size.dropped, 5);
    }

    fn log_path(log: &Spool) -> std::path::PathBuf {
        use std::os::fd::AsRawFd;
        std::fs::read_link(format!("/proc/self/fd/{}", log.file.as_raw_fd())).expect("a path")
    }

    #[test]
    fn what_the_disk_did_not_take_is_counted() {
        // F43: the length and the hash are those of the whole log, so that its holes are noticed.
        let mut log = Spool::open(Path::new("/dev/full"), 1000).expect("a device");
        log.output(b"four");
        log.output(b"fives");
        let size = log.finish();
        assert_eq!((size.bytes, size.lost, size.dropped), (0, 9, 0));
        let whole = digest::digest(&digest::SHA256, b"fourfives");
        assert_eq!(size.sha256, Some(hex(whole.as_ref())));
    }
}
