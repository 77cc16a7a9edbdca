//! Untrusted text on its way to a terminal: names, summaries, logs. Whoever writes a job must not
//! be able to move the cursor, change the title or reorder what somebody else reads.

/// What stands for a character that is not shown.
const STAND_IN: char = '\u{fffd}';

/// Whether colours of a log survive. Nothing else ever does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    Kept,
    Dropped,
}

/// One line of plain text: no control characters, no line breaks, nothing that reorders.
pub fn text(untrusted: &str) -> String {
    untrusted.chars().map(shown).collect()
}

/// One line of a log, without its line break.
pub fn log_line(bytes: &[u8], colours: Colours) -> String {
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let line = String::from_utf8_lossy(bytes);
    let mut shown_line = String::with_capacity(line.len());
    let mut coloured = false;
    let mut rest = line.as_ref();
    while let Some(c) = rest.chars().next() {
        if let Some(length) = escape_length(rest) {
            let (sequence, after) = rest.split_at(length);
            if sequence.ends_with('m') && colours == Colours::Kept {
                shown_line.push_str(sequence);
                coloured = true;
            }
            rest = after;
            continue;
        }
        shown_line.push(shown(c));
        rest = &rest[c.len_utf8()..];
    }
    if coloured {
        shown_line.push_str("\u{1b}[0m");
    }
    shown_line
}

/// The length of a control sequence (`ESC [ … letter`) at the start of the text. Only digits and
/// separators are taken as parameters, so that a colour that is kept can be nothing else.
fn escape_length(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|c: char| !matches!(c, '0'..='9' | ';' | ':'))?;
    let letter = parameters[end..].chars().next()?;
    letter.is_ascii_alphabetic().then_some(2 + end + 1)
}

fn shown(c: char) -> char {
    match c {
        '\t' | '\r' | '\n' => ' ',
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => STAND_IN,
        c if c.is_control() => STAND_IN,
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_survive_and_only_where_they_are_wanted() {
        let line = b"\x1b[1;31mred\x1b[0m \x1b[2J\x1b]0;title\x07 \x1b[31";
        assert_eq!(
            log_line(line, Colours::Kept),
            "\u{1b}[1;31mred\u{1b}[0m \u{fffd}]0;title\u{fffd} \u{fffd}[31\u{1b}[0m"
        );
        assert_eq!(
            log_line(line, Colours::Dropped),
            "red \u{fffd}]0;title\u{fffd} \u{fffd}[31"
        );
    }

    #[test]
    fn text_stays_on_its_line() {
        assert_eq!(text("a\nb\u{9b}c\u{202e}d"), "a b\u{fffd}c\u{fffd}d");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such() {
        assert_eq!(log_line(b"\xff ok\r", Colours::Dropped), "\u{fffd} ok");
    }
}
