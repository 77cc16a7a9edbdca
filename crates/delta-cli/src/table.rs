//! Columns for people: as wide as what is in them, the last one free. No borders, so that a line
//! can be cut by `awk`.

use crate::terminal::{Terminal, Tone};

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
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell {
            text: text.into(),
            tone: None,
        }
    }
}

/// Lines of a table with a header.
pub fn render(terminal: &Terminal, header: &[&str], rows: &[Vec<Cell>]) -> Vec<String> {
    render_within(terminal, header, rows, None)
}

/// The same, the last column cut so that no line is wider, where that leaves anything of it.
pub fn render_within(
    terminal: &Terminal,
    header: &[&str],
    rows: &[Vec<Cell>],
    width: Option<usize>,
) -> Vec<String> {
    let mut widths: Vec<usize> = header.iter().map(|name| name.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.text.chars().count());
        }
    }
    let header: Vec<Cell> = header
        .iter()
        .map(|name| Cell::toned(name.to_string(), Tone::Quiet))
        .collect();
    let before: usize = widths.iter().rev().skip(1).map(|width| width + 2).sum();
    let room = width.map(|width| width.saturating_sub(before));
    std::iter::once(&header)
        .chain(rows)
        .map(|row| match room {
            Some(room) => line(terminal, &fitted(row, room), &widths),
            None => line(terminal, row, &widths),
        })
        .collect()
}

/// A row whose last cell has at most so many characters, but a few in any case.
fn fitted(row: &[Cell], room: usize) -> Vec<Cell> {
    const FEW: usize = 8;
    let mut row = row.to_vec();
    if let Some(last) = row.last_mut()
        && last.text.chars().count() > room.max(FEW)
    {
        last.text = last.text.chars().take(room.max(FEW) - 1).collect();
        last.text.push('…');
    }
    row
}

fn line(terminal: &Terminal, row: &[Cell], widths: &[usize]) -> String {
    let mut text = String::new();
    for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
        let blanks = width.saturating_sub(cell.text.chars().count());
        match cell.tone {
            Some(tone) => text.push_str(&terminal.paint_out(tone, &cell.text)),
            None => text.push_str(&cell.text),
        }
        if index + 1 < row.len() {
            text.push_str(&" ".repeat(blanks + 2));
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::When;

    #[test]
    fn columns_line_up_and_the_last_is_free() {
        let terminal = Terminal::new(false, When::Never);
        let rows = vec![
            vec![Cell::from("a"), Cell::from("one")],
            vec![Cell::from("long"), Cell::from("")],
        ];
        let lines = render(&terminal, &["ID", "WHAT"], &rows);
        assert_eq!(lines, ["ID    WHAT", "a     one", "long"]);
        let rows = [vec![Cell::from("a"), Cell::from("many a word")]];
        let lines = render_within(&terminal, &["ID", "WHAT"], &rows, Some(13));
        assert_eq!(lines, ["ID  WHAT", "a   many a w…"]);
    }
}
