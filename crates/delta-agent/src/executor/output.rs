//! What the job prints, from the pipe to the log and to the observer.

use tokio::net::unix::pipe;

use super::{LogFile, LogSize, Work};
use crate::progress::{Lines, Observer, Progress};

/// Bytes read at once: a pipe holds 64 KiB.
const READ_BYTES: usize = 64 * 1024;

/// Reads of one drain. A background process that prints without pause must not hold up the next
/// step; 256 full reads are 16 MiB, far more than the pipe can hold when its writer has ended.
const MAX_DRAIN_READS: usize = 256;

/// What the job prints, on its way to the log and to the observer.
pub(super) struct Output<'a> {
    pub receiver: pipe::Receiver,
    pub log: LogFile,
    pub lines: Lines,
    pub work: &'a Work,
    pub observer: &'a dyn Observer,
}

impl Output<'_> {
    /// Takes what is in the pipe, once. False when it was empty.
    pub fn read_once(&mut self) -> bool {
        let mut buffer = [0; READ_BYTES];
        let Ok(count) = self.receiver.try_read(&mut buffer) else {
            return false;
        };
        let bytes = &buffer[..count];
        self.log.output(bytes);
        let (observer, job) = (self.observer, &self.work.identity);
        self.lines.push(bytes, |line| {
            observer.progress(Progress::Output { job, line })
        });
        count > 0
    }

    /// Takes everything that ended processes left in the pipe.
    pub fn drain(&mut self) {
        for _ in 0..MAX_DRAIN_READS {
            if !self.read_once() {
                return;
            }
        }
    }

    /// Hands over a last line that has no newline.
    pub fn end_line(&mut self) {
        let (observer, job) = (self.observer, &self.work.identity);
        self.lines
            .finish(|line| observer.progress(Progress::Output { job, line }));
    }

    pub fn finish(mut self) -> LogSize {
        self.end_line();
        self.log.finish()
    }
}
