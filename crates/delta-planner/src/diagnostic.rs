//! What is wrong with a pipeline file, said so that it can be mended: file, line, column, the line
//! itself with a mark under the fault, the reason, and what to write instead.
//!
//! The text of the file is untrusted: control characters never reach the terminal, and a line of a
//! megabyte is cut to a window around the fault.

use std::fmt;

use crate::yaml::Place;

/// Diagnostics kept for one file. A person mends a few at a time; a hostile file could have one per
/// line.
pub const MAX_DIAGNOSTICS: usize = 50;

/// Columns of the source line that are shown.
const MAX_SHOWN_COLUMNS: usize = 100;

/// Characters of a sentence that quotes the file.
const MAX_SENTENCE: usize = 300;

/// Characters of a name that are repeated in a sentence.
const MAX_SHOWN_NAME: usize = 60;

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub file: String,
    pub line: usize,
    pub column: usize,
    /// The line of the file, made safe to print and cut to a window.
    pub source_line: String,
    /// Where the mark begins in `source_line`, in characters from 0.
    pub mark_start: usize,
    pub mark_width: usize,
    pub reason: String,
    pub suggestion: Option<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        writeln!(
            f,
            "{}:{}:{}: {}",
            self.file, self.line, self.column, self.reason
        )?;
        writeln!(f, "{number} | {}", self.source_line)?;
        let indent = " ".repeat(self.mark_start);
        write!(f, "{margin} | {indent}{}", "^".repeat(self.mark_width))?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, "\n{margin} = {suggestion}")?;
        }
        Ok(())
    }
}

/// Every fault found in one file, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    pub items: Vec<Diagnostic>,
    /// Faults found beyond [`MAX_DIAGNOSTICS`].
    pub left_out: usize,
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.items.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            write!(f, "{item}")?;
        }
        if self.left_out > 0 {
            write!(f, "\n\nand {} more", self.left_out)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// Collects faults while a file is read.
pub(crate) struct Collector<'a> {
    file: &'a str,
    lines: Vec<&'a str>,
    items: Vec<Diagnostic>,
    /// Beside each item: whose it is, and its reason without a name in it.
    owners: Vec<(Owner, String)>,
    left_out: usize,
    pushed: usize,
    reading: Owner,
}

/// Who is being read: a job or a template as sentences call it, and which cell of its matrix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Owner {
    what: String,
    cell: usize,
}

impl<'a> Collector<'a> {
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Collector {
            file,
            lines: text.lines().collect(),
            items: Vec::new(),
            owners: Vec::new(),
            left_out: 0,
            pushed: 0,
            reading: Owner::default(),
        }
    }

    /// From here on faults are those of this job or template, in this cell.
    pub fn reading(&mut self, what: &str, cell: usize) {
        let what = what.to_owned();
        self.reading = Owner { what, cell };
    }

    /// How many faults were found so far, those included that were said already.
    pub fn pushed(&self) -> usize {
        self.pushed
    }

    pub fn push(&mut self, place: Place, reason: impl Into<String>, suggestion: Option<String>) {
        let reason = reason.into();
        self.pushed += 1;
        if self.is_said(place, &reason) || self.counted() {
            return;
        }
        self.owners.push((self.reading.clone(), self.bare(&reason)));
        let line = self.lines.get(place.line - 1).copied().unwrap_or("");
        let (source_line, mark_start) = window(line, place.column - 1);
        let room = source_line
            .chars()
            .count()
            .saturating_sub(mark_start)
            .max(1);
        self.items.push(Diagnostic {
            file: self.file.to_owned(),
            line: place.line,
            column: place.column,
            source_line,
            mark_start,
            mark_width: place.width.min(room),
            reason,
            suggestion,
        });
    }

    /// What several jobs have from one template is said once, and so is what several cells share.
    /// Two faults of one place are two.
    fn is_said(&self, place: Place, reason: &str) -> bool {
        let reading = &self.reading;
        let mut same_place = self.items.iter().zip(&self.owners).filter(|(item, _)| {
            // The rest of it costs more.
            (item.line, item.column) == (place.line, place.column)
        });
        let bare = self.bare(reason);
        same_place.any(|(_, (owner, said))| {
            let other_cell = owner.what == reading.what && owner.cell != reading.cell;
            other_cell || *said == bare
        })
    }

    /// A reason without the name of whoever is being read.
    fn bare(&self, reason: &str) -> String {
        match self.reading.what.is_empty() {
            true => reason.to_owned(),
            false => reason.replace(&self.reading.what, ""),
        }
    }

    /// Counts a fault instead of describing it, once there are enough: describing costs time that a
    /// hostile file would multiply. True when it was counted.
    pub fn counted(&mut self) -> bool {
        let full = self.items.len() >= MAX_DIAGNOSTICS;
        self.left_out += usize::from(full);
        full
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn finish(mut self) -> Diagnostics {
        self.items.sort_by_key(|item| (item.line, item.column));
        Diagnostics {
            items: self.items,
            left_out: self.left_out,
        }
    }
}

/// A sentence that quotes the file, safe to print and not longer than a few lines.
pub(crate) fn sentence(text: &str) -> String {
    text.chars().take(MAX_SENTENCE).map(printable).collect()
}

/// A name from the file, safe to put into a sentence.
pub(crate) fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(MAX_SHOWN_NAME).map(printable).collect();
    if name.chars().nth(MAX_SHOWN_NAME).is_some() {
        text.push('…');
    }
    text
}

/// The part of `line` around `at`, one character per column, and where `at` is in it.
fn window(line: &str, at: usize) -> (String, usize) {
    let start = if at < MAX_SHOWN_COLUMNS * 3 / 4 {
        0
    } else {
        at - MAX_SHOWN_COLUMNS / 2
    };
    let mut text = String::new();
    let mut mark = at - start;
    if start > 0 {
        text.push('…');
        mark += 1;
    }
    let mut rest = line.chars().skip(start);
    text.extend(rest.by_ref().take(MAX_SHOWN_COLUMNS).map(printable));
    if rest.next().is_some() {
        text.push('…');
    }
    (text, mark)
}

/// Tabs become one blank so that the mark stays in its column; other control characters and the
/// characters that reorder text become a visible stand-in.
fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_around_the_fault() {
        let line = format!("{}HERE{}", "a".repeat(5_000), "b".repeat(5_000));
        let (text, mark) = window(&line, 5_000);
        assert_eq!(text.chars().count(), MAX_SHOWN_COLUMNS + 2);
        assert_eq!(text.chars().skip(mark).take(4).collect::<String>(), "HERE");
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        let (text, _) = window("a\u{1b}[31m\tb\u{202e}", 0);
        assert_eq!(text, "a\u{fffd}[31m b\u{fffd}");
        assert_eq!(shown("x\u{7}"), "x\u{fffd}");
    }
}
