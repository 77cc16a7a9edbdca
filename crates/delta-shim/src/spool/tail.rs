//! The end of a log that may be longer than its limit: a ring on disk, in which the newest bytes
//! are kept until it is known whether all of them are the log's.
//!
//! The ring is a file without a name, so that nothing of it is left whatever becomes of its
//! process. It refuses to fail: bytes that the disk does not take count as dropped.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of the kept end that are looked through for the beginning of a line.
const LINE_SEARCH: u64 = 64 * 1024;
/// Bytes that are read back at once.
const PIECE: usize = 64 * 1024;

pub(super) struct Tail {
    /// Absent where it cannot be had: then nothing is kept.
    file: Option<File>,
    room: u64,
    /// Bytes that came.
    came: u64,
}

impl Tail {
    /// A ring for so many bytes, on the disk of this log.
    pub fn beside(log: &Path, room: u64) -> Tail {
        let file = (room > 0).then(|| nameless(log).ok()).flatten();
        Tail {
            file,
            room,
            came: 0,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let from = self.came;
        self.came += bytes.len() as u64;
        let Some(file) = &self.file else {
            return;
        };
        // Of more than fits, the last.
        let skipped = (bytes.len() as u64).saturating_sub(self.room);
        let mut rest = &bytes[usize::try_from(skipped).unwrap_or(bytes.len())..];
        let mut at = (from + skipped) % self.room;
        while !rest.is_empty() {
            let fits = usize::try_from(self.room - at).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(rest.len().min(fits));
            if file.write_all_at(now, at).is_err() {
                self.file = None;
                return;
            }
            (rest, at) = (later, 0);
        }
    }

    /// Bytes that came and are not kept.
    pub fn dropped(&self) -> u64 {
        match self.file {
            Some(_) => self.came.saturating_sub(self.room),
            None => self.came,
        }
    }

    /// Where what is kept begins: with a line where something before it is gone.
    pub fn begins(&self) -> u64 {
        let dropped = self.dropped();
        if dropped == 0 || dropped == self.came {
            return dropped;
        }
        let end = self.came.min(dropped + LINE_SEARCH);
        let mut at = dropped;
        while at < end {
            let piece = self.piece(at, end);
            if piece.is_empty() {
                break;
            }
            match piece.iter().position(|byte| *byte == b'\n') {
                Some(found) => return at + found as u64 + 1,
                None => at += piece.len() as u64,
            }
        }
        dropped
    }

    /// The bytes from here on, as many as are read at once; none where there are none.
    pub fn piece(&self, at: u64, end: u64) -> Vec<u8> {
        let end = end.min(self.came);
        let Some(file) = self
            .file
            .as_ref()
            .filter(|_| at >= self.dropped() && at < end)
        else {
            return Vec::new();
        };
        let place = at % self.room;
        let length = (end - at).min(self.room - place);
        let length = usize::try_from(length).unwrap_or(PIECE).min(PIECE);
        let mut bytes = vec![0; length];
        match file.read_exact_at(&mut bytes, place) {
            Ok(()) => bytes,
            Err(_) => Vec::new(),
        }
    }

    /// Nothing that comes is kept.
    pub fn is_closed(&self) -> bool {
        self.file.is_none()
    }

    /// Bytes that came, kept or not.
    pub fn came(&self) -> u64 {
        self.came
    }

    /// The last so many bytes, as far as they are kept.
    pub fn last(&self, count: u64) -> Vec<u8> {
        let mut at = self.came.saturating_sub(count).max(self.dropped());
        let mut last = Vec::new();
        loop {
            let piece = self.piece(at, self.came);
            if piece.is_empty() {
                return last;
            }
            at += piece.len() as u64;
            last.extend_from_slice(&piece);
        }
    }
}

/// A file beside this one that nobody finds.
fn nameless(log: &Path) -> io::Result<File> {
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".tail-{}", std::process::id()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(&name)?;
    fs::remove_file(&name)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(room: u64) -> (tempfile::TempDir, Tail) {
        let folder = tempfile::tempdir().expect("a folder");
        let tail = Tail::beside(&folder.path().join("log"), room);
        (folder, tail)
    }

    #[test]
    fn the_newest_bytes_are_kept_however_they_come() {
        let text: Vec<u8> = (0..1000).map(|n: u32| b'a' + (n % 26) as u8).collect();
        for piece in [1, 3, 7, 64, 65, 999, 1000] {
            let (folder, mut tail) = ring(64);
            for (n, bytes) in text.chunks(piece).enumerate() {
                tail.push(bytes);
                let came = text.len().min((n + 1) * piece);
                let kept = came.min(64);
                assert_eq!(tail.last(64), &text[came - kept..came], "{piece}");
                assert_eq!(tail.dropped(), (came - kept) as u64);
            }
            assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        }
    }

    #[test]
    fn what_is_kept_begins_with_a_line() {
        let (_folder, mut tail) = ring(10);
        tail.push(b"one\ntwo\nthree\n");
        assert_eq!(tail.begins(), 8);
        assert_eq!(tail.piece(8, 14), b"th");
        let (_folder, mut tail) = ring(10);
        tail.push(&[b'x'; 30]);
        assert_eq!(tail.begins(), 20, "a line without an end");
    }

    #[test]
    fn without_room_everything_is_dropped() {
        let (_folder, mut tail) = ring(0);
        tail.push(b"gone");
        assert_eq!(
            (tail.dropped(), tail.begins(), tail.last(4)),
            (4, 4, vec![])
        );
    }
}
