//! What is wrong with a file, said so that it can be mended: file, line, column, the line
//! itself with a mark under the fault, the reason, and what to write instead. A warning looks the
//! same, and fails nothing.
//!
//! The text of the file is untrusted: control characters never reach the terminal, and a line of a
//! megabyte is cut to a window around the fault. What may be the value of a secret is not shown.

use std::collections::HashSet;
use std::fmt;

use crate::yaml::Place;

/// Diagnostics kept for one file. A person mends a few at a time; a hostile file could have one per
/// line.
pub const MAX_DIAGNOSTICS: usize = 50;

/// Warnings kept beside them: they are read on every run, and fewer are read at all.
const MAX_WARNINGS: usize = 20;

/// Columns of the source line that are shown.
const MAX_SHOWN_COLUMNS: usize = 100;

/// Characters of a sentence that quotes the file.
const MAX_SENTENCE: usize = 300;

/// Characters of a name that are repeated in a sentence.
const MAX_SHOWN_NAME: usize = 60;

/// What follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The file is refused.
    Fault,
    /// The file means something, and perhaps not what its author thinks.
    Warning,
}

/// One fault, or one warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub level: Level,
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
        writeln!(f, "{}: {}", self.place(), self.sentence())?;
        writeln!(f, "{number} | {}", self.source_line)?;
        let indent = " ".repeat(self.mark_start);
        write!(f, "{margin} | {indent}{}", "^".repeat(self.mark_width))?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, "\n{margin} = {suggestion}")?;
        }
        Ok(())
    }
}

impl Diagnostic {
    /// `FILE:LINE:COLUMN`.
    pub fn place(&self) -> String {
        format!("{}:{}:{}", self.file, self.line, self.column)
    }

    /// The reason, which says so where it is only a warning.
    pub fn sentence(&self) -> String {
        match self.level {
            Level::Fault => self.reason.clone(),
            Level::Warning => format!("warning: {}", self.reason),
        }
    }
}

/// Every fault found in one file, and its warnings, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    pub items: Vec<Diagnostic>,
    /// Faults found beyond [`MAX_DIAGNOSTICS`].
    pub left_out: usize,
}

impl Diagnostics {
    /// How many faults there are, those left out counted and warnings not.
    pub fn faults(&self) -> usize {
        let faults = self.items.iter().filter(|item| item.level == Level::Fault);
        faults.count() + self.left_out
    }
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
pub struct Collector<'a> {
    file: &'a str,
    lines: Vec<&'a str>,
    faults: Vec<Noted>,
    warnings: Vec<Noted>,
    left_out: usize,
    pushed: usize,
    reading: Owner,
    /// Places of which nothing more is to be said.
    settled: HashSet<(usize, usize)>,
    /// From where on lines are not shown.
    hidden: Vec<Place>,
}

/// What was said of a place, whose it is, and the reason without a name in it.
struct Noted {
    place: Place,
    reason: String,
    suggestion: Option<String>,
    owner: Owner,
    bare: String,
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
            faults: Vec::new(),
            warnings: Vec::new(),
            left_out: 0,
            pushed: 0,
            reading: Owner::default(),
            settled: HashSet::new(),
            hidden: Vec::new(),
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
        let settled = self.settled.contains(&(place.line, place.column));
        if settled || self.is_said(&self.faults, place, &reason) || self.counted() {
            return;
        }
        let noted = self.noted(place, reason, suggestion);
        self.faults.push(noted);
    }

    /// Whatever else is wrong with the value at this place follows from what was said of it.
    pub fn settle(&mut self, place: Place) {
        self.settled.insert((place.line, place.column));
    }

    /// Where a part of the text stands that begins at `place` and has so many lines; at `place`
    /// where it is not found as it is written.
    pub fn part(&self, place: Place, lines: usize, part: &str) -> Place {
        let from = place.line - 1;
        // A text that stands below its key has one line more.
        let mut written = (from..=from + lines).filter_map(|at| Some((at, self.lines.get(at)?)));
        // What stands before it on its own line is another text.
        let first = self.lines.get(from);
        let column = place.column.saturating_sub(1);
        let before = first.and_then(|line| Some(line.char_indices().nth(column)?.0));
        let start_on = |at: usize| if at == from { before.unwrap_or(0) } else { 0 };
        let found = written.find_map(|(at, line)| {
            let start = start_on(at);
            Some((at, line, start + line[start..].find(part)?))
        });
        found.map_or(place, |(at, line, start)| Place {
            line: at + 1,
            column: line[..start].chars().count() + 1,
            width: part.chars().count().max(1),
        })
    }

    /// Something that fails nothing.
    pub fn warn(&mut self, place: Place, reason: impl Into<String>, suggestion: Option<String>) {
        let reason = reason.into();
        let full = self.warnings.len() >= MAX_WARNINGS;
        if !full && !self.is_said(&self.warnings, place, &reason) {
            let noted = self.noted(place, reason, suggestion);
            self.warnings.push(noted);
        }
    }

    /// What stands here may be secret: no line of the file is shown from here on.
    pub fn hide(&mut self, place: Place) {
        self.hidden.push(place);
    }

    fn noted(&self, place: Place, reason: String, suggestion: Option<String>) -> Noted {
        Noted {
            place,
            bare: self.bare(&reason),
            reason,
            suggestion,
            owner: self.reading.clone(),
        }
    }

    /// What several jobs have from one template is said once, and so is what several cells share.
    /// Two faults of one place are two.
    fn is_said(&self, all: &[Noted], place: Place, reason: &str) -> bool {
        let reading = &self.reading;
        let mut same_place = all.iter().filter(|it| {
            // The rest of it costs more.
            (it.place.line, it.place.column) == (place.line, place.column)
        });
        let bare = self.bare(reason);
        same_place.any(|place| {
            let other_cell = place.owner.what == reading.what && place.owner.cell != reading.cell;
            other_cell || place.bare == bare
        })
    }

    /// A reason without the name of whoever is being read.
    fn bare(&self, reason: &str) -> String {
        if self.reading.what.is_empty() {
            reason.to_owned()
        } else {
            reason.replace(&self.reading.what, "")
        }
    }

    /// Counts a fault instead of describing it, once there are enough: describing costs time that a
    /// hostile file would multiply. True when it was counted.
    pub fn counted(&mut self) -> bool {
        let full = self.faults.len() >= MAX_DIAGNOSTICS;
        self.left_out += usize::from(full);
        full
    }

    /// Whether no fault was found.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// What is to be said of a file that is read all the same.
    pub fn warnings(&self) -> Vec<Diagnostic> {
        let all = self.warnings.iter();
        sorted(all.map(|all| self.shown(all, Level::Warning)).collect())
    }

    /// Everything, of a file that is refused. Faults come before warnings where not all fit.
    pub fn finish(self) -> Diagnostics {
        let faults = self
            .faults
            .iter()
            .map(|fault| self.shown(fault, Level::Fault));
        let warnings = self
            .warnings
            .iter()
            .map(|warning| self.shown(warning, Level::Warning));
        let items = faults.chain(warnings).take(MAX_DIAGNOSTICS);
        Diagnostics {
            items: sorted(items.collect()),
            left_out: self.left_out,
        }
    }

    fn shown(&self, noted: &Noted, level: Level) -> Diagnostic {
        let place = noted.place;
        let line = self.lines.get(place.line - 1).copied().unwrap_or("");
        let hidden = self
            .hidden
            .iter()
            .filter(|hidden| hidden.line == place.line);
        let open = hidden.map(|hidden| hidden.column - 1).min();
        let covered: String = match open {
            Some(open) => line.chars().take(open).chain(['…']).collect(),
            None => line.to_owned(),
        };
        let at = (place.column - 1).min(open.unwrap_or(usize::MAX));
        let (source_line, mark_start) = window(&covered, at);
        let room = source_line
            .chars()
            .count()
            .saturating_sub(mark_start)
            .max(1);
        Diagnostic {
            level,
            file: self.file.to_owned(),
            line: place.line,
            column: place.column,
            source_line,
            mark_start,
            mark_width: place.width.min(room),
            reason: noted.reason.clone(),
            suggestion: noted.suggestion.clone(),
        }
    }
}

fn sorted(mut items: Vec<Diagnostic>) -> Vec<Diagnostic> {
    items.sort_by_key(|item| (item.line, item.column));
    items
}

/// A sentence that quotes the file, safe to print and not longer than a few lines.
pub fn sentence(text: &str) -> String {
    text.chars().take(MAX_SENTENCE).map(printable).collect()
}

/// A name from the file, safe to put into a sentence.
pub fn shown(name: &str) -> String {
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
