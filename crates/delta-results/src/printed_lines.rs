//! What was printed, line by line: without colours, and of each line no more than a bound.

use std::io::{self, BufRead};

/// Bytes of a line that are looked at: what a tool says of its tests is shorter.
pub(crate) const LINE: usize = 1024;

/// Hands over each line. One of [`LINE`] bytes had perhaps more.
pub(crate) fn each(mut input: impl BufRead, heard: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let mut line = Vec::with_capacity(LINE);
    loop {
        let piece = input.fill_buf()?;
        if piece.is_empty() {
            heard(&line);
            return Ok(());
        }
        // A carriage return begins a line anew on a terminal.
        let end = piece.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let taken = &piece[..end.unwrap_or(piece.len())];
        let room = LINE.saturating_sub(line.len());
        line.extend_from_slice(&taken[..taken.len().min(room)]);
        let used = taken.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            heard(&line);
            line.clear();
        }
    }
}

/// The line without what colours it on a terminal: `ESC [ … letter`.
pub(crate) fn without_colours(line: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(line.len());
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            0x1b => drop(bytes.find(|byte| byte.is_ascii_alphabetic())),
            byte => plain.push(byte),
        }
    }
    plain
}

/// The number of the step, where this line of a log, such as `--- step 2: make`, stands before what
/// a step printed.
pub(crate) fn step_begun(text: &str) -> Option<u64> {
    let (number, _) = text.strip_prefix("--- step ")?.split_once(": ")?;
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| digits)
}
