//! Names of jobs in a column that is too narrow for them. Cells of a matrix differ in a part of
//! their names: what they have in common goes first, so that no two look alike.

use std::collections::{HashMap, HashSet};

use unicode_width::UnicodeWidthStr;

use super::board::{cut, cut_inside};

/// Between what a name begins with and where it differs.
const GAP: &str = "…";

/// Each name in at most so many columns.
pub fn short_names<'a>(names: &[&'a str], most: usize) -> HashMap<&'a str, String> {
    let mut short: HashMap<&str, String> = HashMap::new();
    let cut_alike = groups(names, |name| cut_inside(name, most));
    for (label, group) in cut_alike {
        match group.as_slice() {
            [only] => drop(short.insert(only, label)),
            several => several.iter().for_each(|name| {
                short.insert(name, where_it_differs(name, several, most));
            }),
        }
    }
    // Where even that is too long, a number tells them apart.
    let still_alike = groups(names, |name| short[name].clone());
    let alike = still_alike.into_values().filter(|it| it.len() > 1);
    let alike: HashSet<&str> = alike.flatten().collect();
    for (name, number) in names.iter().zip(1..).filter(|(it, _)| alike.contains(*it)) {
        let number = format!("#{number}");
        let room = most.saturating_sub(number.width());
        short.insert(name, format!("{}{number}", cut(name, room)));
    }
    short
}

/// The names by what becomes of them, in their order.
fn groups<'a>(names: &[&'a str], of: impl Fn(&str) -> String) -> HashMap<String, Vec<&'a str>> {
    let mut groups: HashMap<String, Vec<&str>> = HashMap::new();
    for name in names {
        let group = groups.entry(of(name)).or_default();
        if !group.contains(name) {
            group.push(name);
        }
    }
    groups
}

/// `unit…3.12…`: the beginning, as far as there is room, and whole words that differ.
fn where_it_differs(name: &str, others: &[&str], most: usize) -> String {
    let from = others.iter().map(|it| common(name.chars(), it.chars()));
    let own = |count: &usize| *count < name.chars().count();
    let from = from.filter(own).min().unwrap_or(0);
    let back = others
        .iter()
        .map(|it| common(name.chars().rev(), it.chars().rev()));
    let back = back.filter(own).min().unwrap_or(0);
    let letters: Vec<char> = name.chars().collect();
    let end = letters.len().saturating_sub(back).max(from);
    let begins = |at: &usize| *at == 0 || is_mark(letters[*at - 1]);
    let from = (0..=from).rev().find(begins).unwrap_or(0);
    let ends = |at: &usize| *at == letters.len() || is_mark(letters[*at]);
    let end = (end..=letters.len()).find(ends).unwrap_or(letters.len());
    let (head, rest) = letters.split_at(from);
    let (differs, tail) = rest.split_at(end - from);
    let text = |letters: &[char]| letters.iter().collect::<String>();
    let mut differs = text(differs);
    if !tail.is_empty() {
        differs.push_str(GAP);
    }
    let room = most.saturating_sub(differs.width());
    match head.is_empty() {
        true => cut_inside(&differs, most),
        false if room == 0 => cut_inside(&differs, most),
        false => format!("{}{differs}", cut(&text(head), room)),
    }
}

/// Between the words of a cell's name.
fn is_mark(letter: char) -> bool {
    matches!(letter, ' ' | ',' | '(' | ')' | '=' | '-' | '_' | '/')
}

/// How many letters both begin with.
fn common(one: impl Iterator<Item = char>, other: impl Iterator<Item = char>) -> usize {
    one.zip(other).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str], most: usize) -> Vec<String> {
        let short = short_names(names, most);
        assert!(short.values().all(|it| it.width() <= most), "{short:?}");
        names.iter().map(|it| short[it].clone()).collect()
    }

    #[test]
    fn what_cells_have_in_common_is_cut_first() {
        let cells = [
            "unit (python=3.11, db=postgres)",
            "unit (python=3.12, db=postgres)",
            "lint",
        ];
        assert_eq!(of(&cells, 13), ["unit (p…3.11…", "unit (p…3.12…", "lint"]);
        assert_eq!(of(&cells, 40), cells);
        let ends = ["unit (db=mysql)", "unit (db=redis)"];
        assert_eq!(of(&ends, 9), ["unit…sql)", "unit…dis)"]);
    }

    #[test]
    fn no_two_names_look_alike_however_narrow_it_is() {
        let cells = [
            "unit (python=3.11, db=postgres, os=linux)",
            "unit (python=3.12, db=postgres, os=linux)",
            "unit (python=3.11, db=postgres, os=macos)",
            "unit (python=3.12, db=mariadbs, os=macos)",
            "integration-tests-of-everything-a",
            "integration-tests-of-everything-b",
        ];
        for most in 8..45 {
            let mut short = of(&cells, most);
            short.sort();
            short.dedup();
            assert_eq!(short.len(), cells.len(), "{most}: {short:?}");
        }
    }
}
