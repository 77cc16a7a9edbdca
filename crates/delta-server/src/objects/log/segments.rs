//! A log on disk: segments, each named by the offset of its first byte, in a folder of their own.
//!
//! A segment's end is where the next one begins. All but the last are sealed: never written again,
//! so that an object store can hold them as they are. A log that was cut ends with a segment that
//! holds the marker and none of the holder's bytes. What lies behind a break in the row, as a power
//! cut may leave it, is not part of the log.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a segment: an object store takes it in one request, and a log has at most 64 of them.
pub const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// Where a segment begins, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub start: u64,
    pub length: u64,
}

impl Segment {
    pub fn end(self) -> u64 {
        self.start + self.length
    }
}

/// A log as it lies in its folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    pub segments: Vec<Segment>,
    /// The marker of a log that was cut.
    pub cut: Option<Segment>,
}

impl Chain {
    /// The holder's bytes.
    pub fn bytes(&self) -> u64 {
        self.segments.last().map_or(0, |last| last.end())
    }

    /// What can be read: the holder's bytes, and the marker if there is one.
    pub fn readable(&self) -> u64 {
        self.cut.map_or(self.bytes(), Segment::end)
    }
}

pub fn path(folder: &Path, start: u64) -> PathBuf {
    folder.join(format!("seg-{start:020}"))
}

pub fn cut_path(folder: &Path, start: u64) -> PathBuf {
    folder.join(format!("cut-{start:020}"))
}

/// What is in the folder, up to the first break.
pub fn list(folder: &Path) -> io::Result<Chain> {
    let mut chain = Chain::default();
    let (mut segments, cut) = found(folder)?;
    segments.sort_by_key(|segment| segment.start);
    for segment in segments {
        if segment.start != chain.bytes() {
            break;
        }
        chain.segments.push(segment);
    }
    chain.cut = cut.filter(|cut| cut.start == chain.bytes());
    Ok(chain)
}

/// Everything there is, in no order.
fn found(folder: &Path) -> io::Result<(Vec<Segment>, Option<Segment>)> {
    let (mut segments, mut cut) = (Vec::new(), None);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some((kind, start)) = name.to_str().and_then(|name| name.split_once('-')) else {
            continue;
        };
        let Ok(start) = start.parse() else { continue };
        let found = entry.metadata()?;
        if !found.is_file() {
            continue;
        }
        let segment = Segment {
            start,
            length: found.len(),
        };
        match kind {
            "seg" => segments.push(segment),
            "cut" => cut = Some(segment),
            _ => {}
        }
    }
    Ok((segments, cut))
}

/// A new segment, or the one that is there.
pub fn create(folder: &Path, start: u64) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path(folder, start))
}

pub fn open(folder: &Path, start: u64) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).open(path(folder, start))
}

/// Makes the log end at `length`, whatever lies behind it.
pub fn truncate(folder: &Path, length: u64) -> io::Result<()> {
    let (mut segments, cut) = found(folder)?;
    // The last ones first, so that there is never a break in the row.
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.start));
    if let Some(cut) = cut.filter(|cut| cut.start > length) {
        std::fs::remove_file(cut_path(folder, cut.start))?;
    }
    for segment in segments {
        if segment.start > length {
            std::fs::remove_file(path(folder, segment.start))?;
        } else if segment.end() > length {
            open(folder, segment.start)?.set_len(length - segment.start)?;
        }
    }
    Ok(())
}

/// Reads a log from some offset on, segment after segment, also while it grows.
#[derive(Debug)]
pub struct LogReader {
    folder: PathBuf,
    at_hand: Option<AtHand>,
    at: u64,
}

/// The segment that is being read.
#[derive(Debug)]
struct AtHand {
    start: u64,
    file: File,
    marker: bool,
}

impl LogReader {
    pub(super) fn new(folder: PathBuf, at: u64) -> LogReader {
        LogReader {
            folder,
            at_hand: None,
            at,
        }
    }

    /// The offset of the next byte.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Reads some bytes; none at the end of what was received.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at_hand.is_none() {
            self.at_hand = self.seek()?;
        }
        while let Some(segment) = &self.at_hand {
            let read = segment.file.read_at(buffer, self.at - segment.start)?;
            self.at += read as u64;
            if read > 0 {
                return Ok(read);
            }
            match self.next()? {
                Some(next) => self.at_hand = Some(next),
                None => break,
            }
        }
        Ok(0)
    }

    /// Fills the buffer as far as there are bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(filled)
    }

    /// The segment that holds the next byte, or will.
    fn seek(&self) -> io::Result<Option<AtHand>> {
        let chain = match list(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            chain => chain?,
        };
        if self.at > chain.readable() {
            return Ok(None);
        }
        if let Some(cut) = chain.cut.filter(|cut| cut.start <= self.at) {
            return self.marker(cut.start);
        }
        let holds = chain.segments.iter().rev().find(|it| it.start <= self.at);
        holds.map_or(Ok(None), |segment| self.segment(segment.start))
    }

    /// The segment that begins where this one ends, if there is one.
    fn next(&self) -> io::Result<Option<AtHand>> {
        match &self.at_hand {
            Some(here) if here.marker => Ok(None),
            Some(here) if here.start == self.at => self.marker(self.at),
            _ => match self.segment(self.at)? {
                None => self.marker(self.at),
                found => Ok(found),
            },
        }
    }

    fn segment(&self, start: u64) -> io::Result<Option<AtHand>> {
        let file = if_there(&path(&self.folder, start))?;
        Ok(file.map(|file| AtHand {
            start,
            file,
            marker: false,
        }))
    }

    fn marker(&self, start: u64) -> io::Result<Option<AtHand>> {
        let file = if_there(&cut_path(&self.folder, start))?;
        Ok(file.map(|file| AtHand {
            start,
            file,
            marker: true,
        }))
    }
}

fn if_there(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(segments: &[(u64, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (start, bytes) in segments {
            std::fs::write(path(folder.path(), *start), bytes).unwrap();
        }
        folder
    }

    fn read_from(folder: &Path, at: u64) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        let read = LogReader::new(folder.to_owned(), at).fill(&mut bytes);
        bytes.truncate(read.unwrap());
        bytes
    }

    #[test]
    fn a_log_is_read_across_its_segments_from_any_offset() {
        let folder = folder(&[(0, b"abc"), (3, b"de"), (5, b"")]);
        std::fs::write(cut_path(folder.path(), 5), b"!").unwrap();
        let all = b"abcde!";
        for at in 0..=all.len() {
            assert_eq!(read_from(folder.path(), at as u64), all[at..], "{at}");
        }
        assert_eq!(read_from(folder.path(), 99), b"");
        let chain = list(folder.path()).unwrap();
        assert_eq!((chain.bytes(), chain.readable()), (5, 6));
    }

    #[test]
    fn what_lies_behind_a_break_is_not_part_of_the_log() {
        let folder = folder(&[(0, b"abc"), (3, b"d"), (5, b"fg")]);
        assert_eq!(list(folder.path()).unwrap().bytes(), 4);
        assert_eq!(read_from(folder.path(), 0), b"abcd");
        truncate(folder.path(), 4).unwrap();
        assert!(!path(folder.path(), 5).exists());
        truncate(folder.path(), 3).unwrap();
        assert_eq!(read_from(folder.path(), 0), b"abc");
        truncate(folder.path(), 0).unwrap();
        assert_eq!(list(folder.path()).unwrap().segments.len(), 1);
    }

    #[test]
    fn a_reader_sees_what_comes_after_it_reached_the_end() {
        let folder = folder(&[(0, b"abc")]);
        let mut reader = LogReader::new(folder.path().to_owned(), 0);
        let mut bytes = [0; 10];
        assert_eq!(reader.fill(&mut bytes).unwrap(), 3);
        assert_eq!(reader.fill(&mut bytes).unwrap(), 0);
        std::fs::write(path(folder.path(), 3), b"more").unwrap();
        assert_eq!(reader.fill(&mut bytes).unwrap(), 4);
        assert_eq!((&bytes[..4], reader.at()), (&b"more"[..], 7));
    }
}
