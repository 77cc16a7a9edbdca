//! The spool: the log of one attempt on disk, bytes in order of arrival, marks between steps, and a
//! quota. Memory stays small whatever the job prints, because the disk is the buffer.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

use super::Step;
use crate::mask::{Masker, Patterns};
use crate::shim::complain;

/// Bytes of an earlier log read at once.
const READ_BYTES: usize = 64 * 1024;

/// Characters of a step shown in its mark.
const MAX_MARK_CHARS: usize = 200;

/// How much was written, and whether it is everything the job printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSize {
    /// Bytes in the file.
    pub bytes: u64,
    /// Bytes of the job beyond the quota: they are no part of the log.
    pub dropped: u64,
    /// Bytes of the log that the disk did not take.
    #[serde(default)]
    pub lost: u64,
    /// SHA-256 of the whole log in hex, with what the disk did not take; absent while it grows, and
    /// when nobody knows whether this is all of it.
    pub sha256: Option<String>,
}

/// The writing end of a log.
pub(crate) struct Spool {
    file: File,
    quota: u64,
    size: LogSize,
    hash: digest::Context,
    full: bool,
    /// The disk failed: what follows is counted and not written, or there would be a gap.
    broken: bool,
    at_line_start: bool,
    masker: Masker,
    patterns: Option<Arc<Patterns>>,
}

impl Spool {
    /// Makes a file, or goes on with what is in one. The job's bytes end at `quota`; marks may
    /// still follow it.
    pub fn open(path: &Path, quota: u64) -> io::Result<Spool> {
        let mut options = OpenOptions::new();
        options.append(true).read(true).create(true).mode(0o600);
        let mut spool = Spool {
            file: options.open(path)?,
            quota,
            size: LogSize::default(),
            hash: digest::Context::new(&digest::SHA256),
            full: false,
            broken: false,
            at_line_start: true,
            masker: Masker::new(None),
            patterns: None,
        };
        spool.take_in()?;
        Ok(spool)
    }

    /// Goes on after a log that ended, of which all is there: what was dropped before stays so.
    pub fn reopen(path: &Path, quota: u64, ended: &LogSize) -> io::Result<Spool> {
        let mut spool = Spool::open(path, quota)?;
        spool.size.dropped = ended.dropped;
        spool.full = ended.dropped > 0;
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

    /// The same, and tells what came of them.
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

    /// Masked bytes, as far as the quota goes.
    fn keep(&mut self, bytes: &[u8]) {
        let room = self.quota.saturating_sub(self.size.bytes + self.size.lost);
        let kept = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if kept > 0 && !self.full {
            self.write(&bytes[..kept]);
        }
        let lost = if self.full {
            bytes.len()
        } else {
            bytes.len() - kept
        };
        self.size.dropped += lost as u64;
        if lost > 0 && !self.full {
            self.full = true;
            let quota = self.quota;
            self.mark_unmasked(&format!(
                "the log is full at {quota} bytes: what follows is dropped"
            ));
        }
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
        let text: String = text.chars().take(MAX_MARK_CHARS).collect();
        let before = if self.at_line_start { "" } else { "\n" };
        self.write(format!("{before}--- {text}\n").as_bytes());
    }

    /// The mark before a step: its number, and its name or first line.
    pub fn step(&mut self, number: usize, step: &Step) {
        let mut lines = step.script.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or("").trim();
        let more = lines.next().is_some() && step.name.is_none();
        let words = step.name.as_deref().unwrap_or(first);
        let more = if more { " …" } else { "" };
        self.mark(&format!("step {number}: {words}{more}"));
    }

    /// Ends the log; a cut one says by how much.
    pub fn finish(mut self) -> LogSize {
        self.release(&mut |_| {});
        if self.size.dropped > 0 {
            self.mark(&format!("{} bytes were dropped", self.size.dropped));
        }
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

    #[test]
    fn the_quota_cuts_and_says_so() {
        let (text, size) = written(10, |log| {
            log.output(b"12345678");
            log.output(b"9abcdef");
            log.output(b"more");
        });
        assert_eq!(
            text,
            "123456789a\n--- the log is full at 10 bytes: what follows is dropped\n\
             --- 9 bytes were dropped\n"
        );
        assert_eq!(size.dropped, 9);
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
        let (text, size) = written(15, |log| {
            log.output(b"before\n");
            let path = log_path(log);
            let mut next = Spool::open(&path, 15).expect("a log");
            assert_eq!(next.bytes(), 7);
            next.output(b"the work");
            *log = next;
            log.output(b"!");
        });
        assert!(
            text.starts_with("before\nthe work\n--- the log is full"),
            "{text}"
        );
        assert_eq!(size.dropped, 1);
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
