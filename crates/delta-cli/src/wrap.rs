//! Lines for a screen of so many columns, broken between words and nowhere else.
//!
//! A word that is wider than the screen stays whole: somebody may want to copy it. Colours take no
//! room. What a job printed is not for this: its lines are its own.

use unicode_width::UnicodeWidthChar;

/// Columns that a text takes, its colours not counted.
pub fn width(text: &str) -> usize {
    let mut taken = 0;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            // Only our own colours are here; everything else was cleaned.
            '\u{1b}' => while rest.next().is_some_and(|c| c != 'm') {},
            c => taken += c.width().unwrap_or(0),
        }
    }
    taken
}

/// A sentence within so many columns; its later lines begin two columns behind its first.
pub fn sentence(text: &str, columns: usize) -> Vec<String> {
    let indent = text.len() - text.trim_start_matches(' ').len();
    within(text, columns, indent + 2)
}

/// A sentence within so many columns, with later lines that begin behind `hang` blanks. A word that
/// fits only without them goes without.
pub fn within(text: &str, columns: usize, hang: usize) -> Vec<String> {
    if width(text) <= columns {
        return vec![text.to_owned()];
    }
    let indent = text.len() - text.trim_start_matches(' ').len();
    let blanks = |wanted: usize, word: &str| {
        if wanted + width(word) <= columns {
            " ".repeat(wanted)
        } else {
            String::new()
        }
    };
    let first = text[indent..].split(' ').next().unwrap_or_default();
    let mut lines = Vec::new();
    let mut line = blanks(indent, first);
    let mut has_words = false;
    for piece in text[indent..].split_inclusive(' ') {
        let word = piece.trim_end_matches(' ');
        if has_words && width(&line) + width(word) > columns && !word.is_empty() {
            lines.push(line.trim_end().to_owned());
            line = blanks(hang, word);
        }
        has_words |= !word.is_empty();
        line.push_str(piece);
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// Columns of the widest word.
pub fn widest_word(text: &str) -> usize {
    text.split(' ').map(width).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_breaks_between_words_only() {
        let text = "  why: there is no run of that name in the folder";
        assert_eq!(
            sentence(text, 22),
            [
                "  why: there is no run",
                "    of that name in",
                "    the folder"
            ]
        );
        assert_eq!(sentence(text, 200), [text]);
    }

    #[test]
    fn a_word_wider_than_the_screen_stays_whole() {
        let lines = within("see run_0123456789 now", 14, 4);
        assert_eq!(lines, ["see", "run_0123456789", "    now"]);
        let lines = within("see a_word_without_an_end now", 14, 4);
        assert_eq!(lines, ["see", "a_word_without_an_end", "    now"]);
    }

    #[test]
    fn colours_take_no_room_and_wide_letters_take_two() {
        assert_eq!(width("\u{1b}[31mred\u{1b}[0m"), 3);
        assert_eq!(width("日本"), 4);
        let text = "\u{1b}[31mFAILED in\u{1b}[0m 2s";
        assert_eq!(sentence(text, 12), [text]);
    }
}
