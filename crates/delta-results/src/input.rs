//! The bytes of a report, counted: one too many and reading ends.

use std::io::{BufRead, Error, Read, Result};

pub struct Input<R> {
    inner: R,
    read: u64,
    limit: u64,
    over: bool,
    /// Bytes that were looked at before their turn, and how many of them have had it.
    ahead: Vec<u8>,
    taken: usize,
}

impl<R: BufRead> Input<R> {
    pub fn new(inner: R, limit: u64) -> Input<R> {
        Input {
            inner,
            read: 0,
            limit,
            over: false,
            ahead: Vec::new(),
            taken: 0,
        }
    }

    pub fn at(&self) -> u64 {
        self.read
    }

    /// The report went on beyond its bound.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The next line with its end, or so much of it, left where it is: a decision must not depend
    /// on how the bytes happened to come, nor wait for more of a report that grows than it needs.
    pub fn line_ahead(&mut self, most: usize) -> Result<&[u8]> {
        loop {
            let there = &self.ahead[self.taken..];
            let there = &there[..there.len().min(most)];
            if there.len() == most || there.contains(&b'\n') {
                break;
            }
            let bytes = self.inner.fill_buf()?;
            let seen = bytes.len();
            if seen == 0 {
                break;
            }
            // What has had its turn must not pile up.
            self.ahead.drain(..self.taken);
            self.taken = 0;
            self.ahead.extend_from_slice(bytes);
            self.inner.consume(seen);
        }
        let bytes = self.fill_buf()?;
        let end = bytes.iter().position(|b| *b == b'\n');
        let end = end.map_or(bytes.len(), |end| end + 1);
        Ok(&bytes[..end.min(most)])
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
        let bytes = if self.taken < self.ahead.len() {
            &self.ahead[self.taken..]
        } else {
            self.inner.fill_buf()?
        };
        if left == 0 && !bytes.is_empty() {
            self.over = true;
            return Err(Error::other("the bound on bytes is reached"));
        }
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        Ok(&bytes[..room])
    }

    fn consume(&mut self, amount: usize) {
        self.read += amount as u64;
        if self.ahead.is_empty() {
            return self.inner.consume(amount);
        }
        self.taken += amount;
        if self.taken >= self.ahead.len() {
            self.ahead.clear();
            self.taken = 0;
        }
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

/// An input as text: bytes that are none become replacement characters.
pub struct Text<'i, R> {
    input: &'i mut Input<R>,
    ready: String,
    taken: usize,
    /// The beginning of a character whose rest has not come.
    rest: Vec<u8>,
}

impl<'i, R: BufRead> Text<'i, R> {
    pub fn new(input: &'i mut Input<R>) -> Text<'i, R> {
        Text {
            input,
            ready: String::new(),
            taken: 0,
            rest: Vec::new(),
        }
    }

    fn refill(&mut self) -> Result<()> {
        self.ready.clear();
        self.taken = 0;
        while self.ready.is_empty() {
            let bytes = self.input.fill_buf()?;
            let (seen, ended) = (bytes.len(), bytes.is_empty());
            self.rest.extend_from_slice(bytes);
            self.input.consume(seen);
            let whole = std::mem::take(&mut self.rest);
            let mut at = 0;
            for chunk in whole.utf8_chunks() {
                self.ready.push_str(chunk.valid());
                at += chunk.valid().len() + chunk.invalid().len();
                // Three bytes at most are the beginning of something.
                let open = at == whole.len() && chunk.invalid().len() < 4 && !ended;
                if open {
                    self.rest = chunk.invalid().to_vec();
                } else if !chunk.invalid().is_empty() {
                    self.ready.push(char::REPLACEMENT_CHARACTER);
                }
            }
            if ended {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl<R: BufRead> BufRead for Text<'_, R> {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        if self.taken == self.ready.len() {
            self.refill()?;
        }
        Ok(&self.ready.as_bytes()[self.taken..])
    }

    fn consume(&mut self, amount: usize) {
        self.taken += amount;
    }
}

impl<R: BufRead> Read for Text<'_, R> {
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
    fn broken_characters_are_replaced_wherever_the_reads_fall() {
        let bytes: Vec<u8> = "aä€😀".bytes().chain([0xff, b'b', 0xe2, 0x82]).collect();
        for size in 1..=bytes.len() {
            let reader = std::io::BufReader::with_capacity(size, &bytes[..]);
            let mut input = Input::new(reader, 100);
            let mut text = String::new();
            Text::new(&mut input).read_to_string(&mut text).unwrap();
            assert_eq!(text, "aä€😀\u{fffd}b\u{fffd}", "{size}");
        }
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
