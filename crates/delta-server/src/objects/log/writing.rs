//! A log that is being written: the lock, the last segment, and how far everything is.
//!
//! It exists while there are bytes that are not on disk yet, and the lock is held as long. So
//! whoever gets the lock knows that the server before it synced everything, or died. The lock's
//! file holds the mark: up to there, bytes are on disk for certain. Behind it may lie what a server
//! that died had received; it counts when the holder has sent it again and it was equal, and it is
//! written over where it was not, since a power cut may have left anything there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::segments::{self, LogReader, SEGMENT_BYTES};
use super::{AppendError, Cursors};

/// How long to wait for another server that writes this log: it gives way after a second, and
/// whoever waits longer waits for one that hangs.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries at the lock; doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LAST_PAUSE: Duration = Duration::from_millis(5);
/// How much of an overlap is compared at a time.
const COMPARED_BYTES: usize = 64 * 1024;
const MARK_DIGITS: usize = 20;

pub(super) struct Writing {
    /// Locked for as long as this lives.
    lock: File,
    since: Instant,
    segment: Arc<File>,
    start: u64,
    /// Full segments that are not on disk yet.
    sealed: Vec<Arc<File>>,
    /// How often the folder got a new name, and how many of them are on disk.
    names: u64,
    synced_names: u64,
    /// How often bytes were taken back: what was being synced meanwhile is something else.
    taken_back: u64,
    /// The holder's bytes that are written.
    length: u64,
    /// Those that are certainly the holder's.
    verified: u64,
    /// Those that are on disk.
    synced: u64,
    /// The log was cut: of what the holder sent, this much was counted.
    cut: Option<u64>,
}

/// What has to be synced so that everything up to `length` is on disk.
pub(super) struct Unsynced {
    length: u64,
    segment: Arc<File>,
    sealed: Vec<Arc<File>>,
    names: u64,
    new_names: bool,
    taken_back: u64,
}

impl Unsynced {
    pub fn sync(&self, folder: &Path) -> io::Result<()> {
        for file in &self.sealed {
            file.sync_data()?;
        }
        self.segment.sync_data()?;
        if self.new_names {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }
}

impl Writing {
    /// Takes the lock and looks how far the log is.
    pub fn begin(folder: &Path) -> io::Result<Writing> {
        let lock = lock(folder)?;
        let chain = segments::list(folder)?;
        let last = chain.segments.last().copied();
        let start = last.ok_or(io::ErrorKind::NotFound)?.start;
        let length = chain.bytes();
        // Leftovers behind a break would be in the way of new segments.
        segments::truncate(folder, length)?;
        let mark = mark(&lock).min(length);
        Ok(Writing {
            since: Instant::now(),
            segment: Arc::new(segments::open(folder, start)?),
            start,
            sealed: open_between(folder, &chain.segments, mark)?,
            names: u64::from(mark < length),
            synced_names: 0,
            taken_back: 0,
            length,
            verified: mark,
            synced: mark,
            cut: chain.cut.map(|_| length),
            lock,
        })
    }

    pub fn cursors(&self) -> Cursors {
        let stored = self.verified.min(self.synced);
        match self.cut {
            None => Cursors {
                received: self.verified,
                stored,
                cut: false,
            },
            Some(counted) => Cursors {
                received: counted,
                stored: if self.is_synced() { counted } else { stored },
                cut: true,
            },
        }
    }

    /// Everything that is written is on disk.
    pub fn is_synced(&self) -> bool {
        self.synced == self.length && self.synced_names == self.names
    }

    pub fn unsynced_bytes(&self) -> u64 {
        self.length - self.synced
    }

    pub fn held_for(&self) -> Duration {
        self.since.elapsed()
    }

    /// Adds bytes that begin at `offset`. What is there already must be equal.
    pub fn append(
        &mut self,
        folder: &Path,
        quota: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), AppendError> {
        let end = offset.saturating_add(bytes.len() as u64);
        let known = self.length.saturating_sub(offset);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let (overlap, fresh) = bytes.split_at(known.min(bytes.len()));
        if let Some(counted) = self.cut {
            // Nothing is stored any more, so there is nothing that could have a gap.
            self.compare(folder, offset, overlap)?;
            self.cut = Some(counted.max(end));
            return Ok(());
        }
        if offset > self.length {
            return Err(AppendError::Gap {
                expected: self.verified,
            });
        }
        // A holder sends nothing twice that was acknowledged as stored: what is before is its own.
        self.verified = self.verified.max(offset);
        let equal = self.compare(folder, offset, overlap)?;
        if equal < overlap.len() as u64 {
            self.truncate(folder, offset + equal)?;
            return self.append(folder, quota, offset, bytes);
        }
        self.verified = self.verified.max(offset + equal);
        let room = usize::try_from(quota.saturating_sub(self.length)).unwrap_or(usize::MAX);
        let (fits, beyond) = fresh.split_at(room.min(fresh.len()));
        if !fits.is_empty() {
            self.write(folder, fits)?;
        }
        if !beyond.is_empty() {
            self.cut(folder, quota)?;
            self.cut = Some(end);
        }
        Ok(())
    }

    /// How many bytes from `offset` on are the same; fewer than all only where they may differ.
    fn compare(&self, folder: &Path, offset: u64, bytes: &[u8]) -> Result<u64, AppendError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let mut reader = LogReader::new(folder.to_owned(), offset);
        let mut buffer = vec![0; COMPARED_BYTES.min(bytes.len())];
        let mut at = offset;
        for piece in bytes.chunks(COMPARED_BYTES) {
            let stored = &mut buffer[..piece.len()];
            let read = reader.fill(stored)?;
            let pairs = piece.iter().zip(&stored[..read]);
            let equal = pairs.take_while(|(new, old)| new == old).count();
            at += equal as u64;
            if equal < piece.len() {
                break;
            }
        }
        if at < offset + bytes.len() as u64 && at < self.verified {
            return Err(AppendError::Differs {
                expected: self.verified,
            });
        }
        Ok(at - offset)
    }

    fn write(&mut self, folder: &Path, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let at = self.length - self.start;
            if at >= SEGMENT_BYTES {
                self.seal(folder)?;
                continue;
            }
            let room = usize::try_from(SEGMENT_BYTES - at).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Err(error) = self.segment.write_all_at(now, at) {
                // Half a piece must not look received when it is sent again.
                let _ = self.segment.set_len(at);
                return Err(error);
            }
            self.length += now.len() as u64;
            self.verified = self.length;
            bytes = later;
        }
        Ok(())
    }

    fn seal(&mut self, folder: &Path) -> io::Result<()> {
        let next = Arc::new(segments::create(folder, self.length)?);
        self.names += 1;
        self.start = self.length;
        self.sealed.push(std::mem::replace(&mut self.segment, next));
        Ok(())
    }

    /// Says at the end of the log that the rest is missing.
    fn cut(&mut self, folder: &Path, quota: u64) -> io::Result<()> {
        let marker = format!(
            "\n[delta-ci: the log was cut here: {quota} bytes are kept of one lease's log]\n"
        );
        let path = segments::cut_path(folder, self.length);
        std::fs::write(&path, marker)?;
        self.sealed.push(Arc::new(File::open(path)?));
        self.names += 1;
        tracing::warn!(folder = %folder.display(), quota, "a log was cut at its quota");
        Ok(())
    }

    /// What lies behind `length` was never acknowledged as stored: away with it.
    fn truncate(&mut self, folder: &Path, length: u64) -> io::Result<()> {
        segments::truncate(folder, length)?;
        let chain = segments::list(folder)?;
        let last = chain.segments.last().copied();
        self.start = last.ok_or(io::ErrorKind::NotFound)?.start;
        self.segment = Arc::new(segments::open(folder, self.start)?);
        self.length = chain.bytes();
        self.verified = self.verified.min(self.length);
        self.synced = self.synced.min(self.length);
        self.sealed = open_between(folder, &chain.segments, self.synced)?;
        self.taken_back += 1;
        Ok(())
    }

    /// Forgets everything that is not certainly on disk: syncing it failed.
    pub fn roll_back(&mut self, folder: &Path) -> io::Result<()> {
        self.cut = None;
        self.truncate(folder, self.synced)
    }

    pub fn unsynced(&self) -> Unsynced {
        Unsynced {
            length: self.length,
            segment: self.segment.clone(),
            sealed: self.sealed.clone(),
            names: self.names,
            new_names: self.names > self.synced_names,
            taken_back: self.taken_back,
        }
    }

    /// This much is on disk now.
    pub fn synced(&mut self, done: &Unsynced) {
        if done.taken_back != self.taken_back {
            return;
        }
        self.synced = done.length;
        self.synced_names = done.names;
        let is_done = |file: &Arc<File>| done.sealed.iter().any(|it| Arc::ptr_eq(it, file));
        self.sealed.retain(|file| !is_done(file));
        let mark = format!("{:0MARK_DIGITS$}\n", self.verified.min(self.synced));
        // Without it the next server asks for some bytes again that it has.
        let _ = self.lock.write_all_at(mark.as_bytes(), 0);
    }

    /// What the holder sent of a log that was cut, as far as somebody counted.
    pub fn count(&mut self, counted: u64) {
        self.cut = self.cut.map(|cut| cut.max(counted));
    }
}

/// All segments but the last that reach beyond the mark: whoever wrote them may have died before
/// they were on disk.
fn open_between(folder: &Path, all: &[segments::Segment], mark: u64) -> io::Result<Vec<Arc<File>>> {
    let full = all.split_last().map_or(&[][..], |(_, full)| full);
    let beyond = full.iter().filter(|segment| segment.end() > mark);
    let opened = beyond.map(|segment| segments::open(folder, segment.start).map(Arc::new));
    opened.collect()
}

/// The mark of a log nobody is writing to, for whoever only wants to know.
pub(super) fn mark_of(folder: &Path) -> u64 {
    File::open(folder.join("lock")).map_or(0, |file| mark(&file))
}

fn mark(file: &File) -> u64 {
    let mut text = [0; MARK_DIGITS];
    let read = file.read_exact_at(&mut text, 0);
    let number = read.ok().and_then(|()| std::str::from_utf8(&text).ok());
    number.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Locks a log against all others, of this server and of any that shares the folder.
fn lock(folder: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(folder.join("lock"))?;
    let (started, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LAST_PAUSE);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
