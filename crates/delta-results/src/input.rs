//! The bytes of a report, counted: one too many and reading ends.

use std::io::{BufRead, Error, Read, Result};

pub struct Input<R> {
    inner: R,
    read: u64,
    limit: u64,
    over: bool,
}

impl<R: BufRead> Input<R> {
    pub fn new(inner: R, limit: u64) -> Input<R> {
        Input {
            inner,
            read: 0,
            limit,
            over: false,
        }
    }

    pub fn at(&self) -> u64 {
        self.read
    }

    /// The report went on beyond its bound.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The first byte that is not white space, left where it is.
    pub fn peek(&mut self) -> Result<Option<u8>> {
        loop {
            let bytes = self.fill_buf()?;
            let Some(found) = bytes.iter().position(|b| !b.is_ascii_whitespace()) else {
                let seen = bytes.len();
                if seen == 0 {
                    return Ok(None);
                }
                self.consume(seen);
                continue;
            };
            let byte = bytes[found];
            self.consume(found);
            return Ok(Some(byte));
        }
    }

    /// One line without its end, cut at `limit` bytes; what is beyond is skipped. False at the end.
    pub fn line(&mut self, limit: usize, line: &mut Vec<u8>) -> Result<bool> {
        line.clear();
        let mut any = false;
        loop {
            let bytes = self.fill_buf()?;
            if bytes.is_empty() {
                return Ok(any);
            }
            any = true;
            let end = bytes.iter().position(|b| *b == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            let room = limit.saturating_sub(line.len()).min(part.len());
            line.extend_from_slice(&part[..room]);
            let used = end.map_or(bytes.len(), |end| end + 1);
            self.consume(used);
            if end.is_some() {
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(true);
            }
        }
    }
}

impl<R: BufRead> BufRead for Input<R> {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        let left = self.limit - self.read;
        let bytes = self.inner.fill_buf()?;
        if left == 0 && !bytes.is_empty() {
            self.over = true;
            return Err(Error::other("the bound on bytes is reached"));
        }
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        Ok(&bytes[..room])
    }

    fn consume(&mut self, amount: usize) {
        self.read += amount as u64;
        self.inner.consume(amount);
    }
}

impl<R: BufRead> Read for Input<R> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let bytes = self.fill_buf()?;
        let room = bytes.len().min(into.len());
        into[..room].copy_from_slice(&bytes[..room]);
        self.consume(room);
        Ok(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_too_many_ends_the_reading() {
        let mut exact = Input::new(&b"four"[..], 4);
        let mut all = String::new();
        exact.read_to_string(&mut all).unwrap();
        assert!(all == "four" && !exact.is_over());
        let mut over = Input::new(&b"fives"[..], 4);
        assert!(over.read_to_string(&mut all).is_err() && over.is_over());
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_read_whole() {
        let mut input = Input::new(&b"a line too long\r\nshort\r\nlast"[..], 100);
        let (mut line, mut lines) = (Vec::new(), Vec::new());
        while input.line(6, &mut line).unwrap() {
            lines.push(String::from_utf8(line.clone()).unwrap());
        }
        assert_eq!(lines, ["a line", "short", "last"]);
    }
}
