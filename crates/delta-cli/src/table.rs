//! Columns for people: as wide as what is in them, the last one free. No borders, so that a line
//! can be cut by `awk`.
//!
//! A program gets every column, a row on a line. On a terminal no word is broken: the last column
//! is wrapped; where that is not enough, columns are left out in the order of
//! [`Columns::spare`]; and what still does not fit is stacked, a record with all its cells.

use crate::columns::Columns;
use crate::terminal::{Terminal, Tone};
use crate::wrap::{self, widest_word};

/// Columns that the last cell gets at least, where it has so many: a sentence of a word a line is
/// no sentence.
const LAST_COLUMN: usize = 16;

/// Columns between two cells.
const GAP: usize = 2;

/// A cell, already cleaned of control characters.
#[derive(Clone, Debug)]
pub struct Cell {
    pub text: String,
    pub tone: Option<Tone>,
}

impl Cell {
    pub fn toned(text: impl Into<String>, tone: Tone) -> Cell {
        Cell {
            text: text.into(),
            tone: Some(tone),
        }
    }

    fn width(&self) -> usize {
        wrap::width(&self.text)
    }

    fn painted(&self, text: &str, terminal: &Terminal) -> String {
        match self.tone {
            Some(tone) if !text.is_empty() => terminal.paint_out(tone, text),
            _ => text.to_owned(),
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell {
            text: text.into(),
            tone: None,
        }
    }
}

/// Prints a table with a header to stdout.
pub fn show(terminal: &Terminal, columns: &Columns, rows: &[Vec<Cell>]) {
    for line in render(terminal, columns, rows, terminal.out_width()) {
        terminal.data(&line);
    }
}

/// Lines of a table with a header, none wider than `most` where there is such a limit, but for
/// words that are.
pub fn render(
    terminal: &Terminal,
    columns: &Columns,
    rows: &[Vec<Cell>],
    most: Option<usize>,
) -> Vec<String> {
    let all: Vec<usize> = (0..columns.header.len()).collect();
    let Some(most) = most else {
        return aligned(terminal, columns, rows, &all, usize::MAX);
    };
    let mut kept = all;
    let mut spare = columns.spare.iter();
    while least(columns, rows, &kept) > most {
        let Some(name) = spare.next() else {
            return stacked(terminal, columns, rows, most);
        };
        kept.retain(|at| columns.header[*at] != *name);
    }
    aligned(terminal, columns, rows, &kept, most)
}

/// Columns that a table of these needs, its last one wrapped.
fn least(columns: &Columns, rows: &[Vec<Cell>], kept: &[usize]) -> usize {
    let Some((last, before)) = kept.split_last() else {
        return 0;
    };
    let before = before.iter().map(|at| widest(columns, rows, *at) + GAP);
    let words = rows.iter().map(|row| widest_word(&row[*last].text)).max();
    let free = widest(columns, rows, *last).min(LAST_COLUMN);
    before.sum::<usize>() + free.max(words.unwrap_or(0))
}

fn widest(columns: &Columns, rows: &[Vec<Cell>], at: usize) -> usize {
    let cells = rows.iter().map(|row| row[at].width()).max();
    cells.unwrap_or(0).max(wrap::width(columns.header[at]))
}

fn aligned(
    terminal: &Terminal,
    columns: &Columns,
    rows: &[Vec<Cell>],
    kept: &[usize],
    most: usize,
) -> Vec<String> {
    let header = columns.header.iter();
    let header: Vec<Cell> = header.map(|name| Cell::toned(*name, Tone::Quiet)).collect();
    let widths: Vec<usize> = kept.iter().map(|at| widest(columns, rows, *at)).collect();
    let before = widths.iter().rev().skip(1).map(|width| width + GAP);
    let before = before.sum::<usize>();
    let mut lines = Vec::new();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        let Some((last, others)) = kept.split_last() else {
            break;
        };
        for (at, width) in others.iter().zip(&widths) {
            let cell = &row[*at];
            line.push_str(&cell.painted(&cell.text, terminal));
            line.push_str(&" ".repeat(width - cell.width() + GAP));
        }
        let room = most.saturating_sub(before).max(1);
        for (at, part) in wrap::within(&row[*last].text, room, 0).iter().enumerate() {
            if at > 0 {
                line = " ".repeat(before);
            }
            line.push_str(&row[*last].painted(part, terminal));
            lines.push(line.trim_end().to_owned());
        }
    }
    lines
}

/// Each row as a record: its first cell, and below it the others with their names. Nothing is left
/// out but what is empty.
fn stacked(terminal: &Terminal, columns: &Columns, rows: &[Vec<Cell>], most: usize) -> Vec<String> {
    let names = columns.header.iter().skip(1).map(|name| wrap::width(name));
    let hang = GAP + names.max().unwrap_or(0) + GAP;
    let mut lines = Vec::new();
    for row in rows {
        let mut cells = row.iter().zip(columns.header);
        if let Some((first, _)) = cells.next() {
            let parts = wrap::within(&first.text, most, GAP);
            lines.extend(parts.iter().map(|part| first.painted(part, terminal)));
        }
        for (cell, name) in cells.filter(|(cell, _)| !cell.text.is_empty()) {
            lines.extend(named(terminal, name, cell, hang, most));
        }
    }
    lines
}

/// One cell of a record behind its name; one with a word that does not fit there, below it.
fn named(terminal: &Terminal, name: &str, cell: &Cell, hang: usize, most: usize) -> Vec<String> {
    let label = terminal.paint_out(Tone::Quiet, name);
    if widest_word(&cell.text) + hang > most {
        let text = format!("{:hang$}{}", "", cell.text, hang = 2 * GAP);
        let parts = wrap::within(&text, most, 2 * GAP);
        let parts = parts.iter().map(|part| cell.painted(part, terminal));
        return std::iter::once(format!("{:GAP$}{label}", ""))
            .chain(parts)
            .collect();
    }
    let blanks = hang - GAP - wrap::width(name);
    let parts = wrap::within(&cell.text, most - hang, 0);
    let parts = parts.iter().map(|part| cell.painted(part, terminal));
    let lines = parts.enumerate().map(|(at, part)| match at {
        0 => format!("{:GAP$}{label}{:blanks$}{part}", "", ""),
        _ => format!("{:hang$}{part}", ""),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::When;

    const TWO: Columns = Columns {
        header: &["ID", "WHAT"],
        spare: &[],
    };

    const FOUR: Columns = Columns {
        header: &["JOB", "STATE", "ID", "NOTE"],
        spare: &["ID"],
    };

    fn lines(columns: &Columns, rows: &[&[&str]], most: Option<usize>) -> Vec<String> {
        let terminal = Terminal::new(false, When::Never);
        let row = |row: &&[&str]| row.iter().map(|text| Cell::from(*text)).collect();
        let rows: Vec<Vec<Cell>> = rows.iter().map(row).collect();
        render(&terminal, columns, &rows, most)
    }

    #[test]
    fn columns_line_up_and_the_last_is_free() {
        let rows: [&[&str]; 2] = [&["a", "one"], &["long", ""]];
        let wanted = ["ID    WHAT", "a     one", "long"];
        assert_eq!(lines(&TWO, &rows, None), wanted);
        assert_eq!(lines(&TWO, &rows, Some(12)), wanted);
    }

    const JOBS: [&[&str]; 2] = [
        &[
            "unit",
            "FAILED",
            "job_0123456789",
            "step 1: exit code 1, log cut: 3 kB dropped",
        ],
        &["lint", "SUCCEEDED", "job_0123456790", ""],
    ];

    #[test]
    fn the_last_column_is_wrapped_where_that_is_enough() {
        let wanted = "\
JOB   STATE      ID              NOTE
unit  FAILED     job_0123456789  step 1: exit code 1, log cut: 3
                                 kB dropped
lint  SUCCEEDED  job_0123456790";
        assert_eq!(lines(&FOUR, &JOBS, Some(65)).join("\n"), wanted);
    }

    #[test]
    fn then_columns_are_left_out_in_their_order() {
        let wanted = "\
JOB   STATE      NOTE
unit  FAILED     step 1: exit code 1, log
                 cut: 3 kB dropped
lint  SUCCEEDED";
        assert_eq!(lines(&FOUR, &JOBS, Some(41)).join("\n"), wanted);
    }

    #[test]
    fn what_still_does_not_fit_is_stacked_with_all_its_cells() {
        let wanted = "\
unit
  STATE  FAILED
  ID
    job_0123456789
  NOTE   step 1: exit
         code 1, log
         cut: 3 kB
         dropped
lint
  STATE  SUCCEEDED
  ID
    job_0123456790";
        assert_eq!(lines(&FOUR, &JOBS, Some(21)).join("\n"), wanted);
    }

    #[test]
    fn a_program_gets_every_column_on_one_line() {
        let rows: [&[&str]; 1] = [&["a", "b", "c", "many a word, ".repeat(40).leak()]];
        assert_eq!(lines(&FOUR, &rows, None).len(), 2);
    }
}
