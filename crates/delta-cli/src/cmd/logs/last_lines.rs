//! The last lines of a log: its last bytes, more of them until there are enough lines.

use super::printer::Printer;
use super::{Log, Said};
use crate::failure::Failure;

/// Bytes that are asked for first: more than most people's last lines.
const FIRST_BYTES: u64 = 64 * 1024;
/// Bytes that are held to find lines in; a log with longer lines is shown from here on.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

pub async fn print(
    log: &Log<'_>,
    lines: usize,
    printer: &mut Printer<'_>,
) -> Result<Said, Failure> {
    let mut wanted = FIRST_BYTES;
    loop {
        let headers = [("range", format!("bytes=-{wanted}"))];
        let response = log.open(&headers).await?;
        let said = Said::read(&response)?;
        let all = response.content_length() == Some(said.place.offset);
        let bytes = response.bytes().await;
        let bytes = bytes.map_err(|error| log.client.away(&error))?;
        let found = last_lines(&bytes, lines);
        if found.is_some() || all || wanted >= MOST_BYTES {
            printer.begin(said.place.attempt);
            printer.push(found.unwrap_or(&bytes));
            return Ok(said);
        }
        wanted *= 4;
    }
}

/// The last so many lines, if there are bytes before them; a last one need not have ended.
fn last_lines(bytes: &[u8], lines: usize) -> Option<&[u8]> {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut starts = body
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, byte)| **byte == b'\n');
    match lines {
        0 => Some(&[]),
        lines => starts.nth(lines - 1).map(|(at, _)| &bytes[at + 1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_those_before_the_end_ended_or_not() {
        let text = b"a\nb\n\nc\n";
        assert_eq!(last_lines(text, 1), Some(&b"c\n"[..]));
        assert_eq!(last_lines(text, 2), Some(&b"\nc\n"[..]));
        assert_eq!(last_lines(text, 3), Some(&b"b\n\nc\n"[..]));
        assert_eq!(last_lines(text, 4), None, "all of it");
        assert_eq!(last_lines(b"a\nb", 1), Some(&b"b"[..]));
        assert_eq!(last_lines(b"", 1), None);
        assert_eq!(last_lines(text, 0), Some(&b""[..]));
    }
}
