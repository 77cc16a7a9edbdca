//! What a comment may say: ids that can be looked up, and a subject of its own.
//!
//! Owns the two rules about comments. An id such as `A23` stands only where `docs/decisions.md` has
//! a line for it; a doc comment does not open with a reference to the item above it, which a reader
//! who hovers over one item does not see. Words in code and in literals are nobody's comments.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::scan;
use crate::source::File;

/// The page that has one line for each id.
pub const INDEX: &str = "docs/decisions.md";

/// The letters of the families in the index. Edges of the machines (R, J, K) and rules with a dash
/// (RP-1) belong to the coverage page, which has a check of its own.
const FAMILIES: &str = "ADFGILT";
/// No family has a thousand lines; `T12345` is somebody's number.
const MAX_DIGITS: usize = 3;

/// Openings that only make sense below the item before.
const NO_SUBJECT: [&str; 2] = ["The same", "And"];

/// The ids that the index defines: the first cell of each row.
pub fn defined(index: &str) -> Result<BTreeSet<String>> {
    let rows = index.lines().filter_map(|line| line.strip_prefix("| "));
    let first = rows.filter_map(|row| row.split(" |").next());
    let ids: BTreeSet<String> = first
        .filter(|cell| ids(cell).eq([*cell]))
        .map(str::to_owned)
        .collect();
    ensure!(!ids.is_empty(), "{INDEX} defines no id");
    Ok(ids)
}

/// Ids without a line in the index, and doc comments without a subject.
pub fn check(file: &File, defined: &BTreeSet<String>, findings: &mut Vec<String>) {
    for (line, text) in lines_of_comments(file) {
        let place = format!("{}:{line}", file.path);
        for id in ids(&text).filter(|id| !defined.contains(*id)) {
            findings.push(format!("{place}: `{id}` has no line in {INDEX}"));
        }
        let doc = text.strip_prefix("///").or(text.strip_prefix("//!"));
        if let Some(opening) = doc.and_then(without_subject)
            && opens(file, line)
        {
            let wanted = "name the subject: a reader may see this item alone";
            findings.push(format!("{place}: `{opening} …`: {wanted}"));
        }
    }
}

/// The words that a doc comment opens with in place of a subject.
fn without_subject(doc: &str) -> Option<&'static str> {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
    let opening = |words: &&str| doc.trim_start().strip_prefix(words).is_some_and(ends);
    NO_SUBJECT.into_iter().find(opening)
}

/// The lines, counted from 1, that may hold an id for people.
fn lines_of_comments(file: &File) -> Vec<(usize, String)> {
    if file.path.ends_with(".rs") {
        return scan::comments(&file.text);
    }
    let marks: &[&str] = match file.path.rsplit_once('.').map(|(_, end)| end) {
        Some("md") => &[""],
        Some("py" | "toml" | "yaml" | "yml" | "sh") => &["#"],
        Some("sql") => &["--"],
        _ => &[],
    };
    let comment = |line: &str| {
        let starts = marks.iter().filter_map(|mark| line.find(mark));
        let comment = &line[starts.min()?..];
        // What a linter is told in a comment is not for people.
        Some(comment.split("noqa").next()?.to_owned())
    };
    let lines = file.text.lines().enumerate();
    lines
        .filter_map(|(number, line)| Some((number + 1, comment(line)?)))
        .collect()
}

/// Whether a doc comment begins in this line: the one above is none.
fn opens(file: &File, line: usize) -> bool {
    let above = line.checked_sub(2).and_then(|at| file.text.lines().nth(at));
    let above = above.map_or("", str::trim_start);
    !above.starts_with("///") && !above.starts_with("//!")
        || matches!(above.trim_end(), "///" | "//!")
}

/// Every id in a text: a letter of a family and a number, as a word of its own.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || "_-+:`".contains(c)));
    words
        .map(|word| word.trim_end_matches([':', '-']))
        .filter(|word| {
            let number = word.strip_prefix(|c| FAMILIES.contains(c));
            number.is_some_and(|digits| {
                (1..=MAX_DIGITS).contains(&digits.len())
                    && digits.bytes().all(|digit| digit.is_ascii_digit())
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let index =
            "| | what holds | more |\n|---|---|---|\n| A23 | One clock. | |\n| T17 | No. | |\n";
        let file = File {
            path: path.into(),
            text: text.into(),
        };
        let mut found = Vec::new();
        check(&file, &defined(index).unwrap(), &mut found);
        found
    }

    #[test]
    fn an_id_that_nobody_can_look_up_is_found() {
        for (path, text) in [
            ("a.rs", "//! Owns (A99).\n"),
            ("a.rs", "fn a() {} // F1: why\n"),
            ("a.rs", "/* see\n D7 */\n"),
            ("a.rs", "/// A23, T18: both\n"),
            ("a.py", "x = 1  # I3\n"),
            ("a.sql", "select 1; -- L9\n"),
            ("a.md", "as G2 says\n"),
        ] {
            assert_eq!(findings(path, text).len(), 1, "{text}");
        }
        let found = findings("a.rs", "\n/// Wrong: A99.\n");
        assert_eq!(found, ["a.rs:2: `A99` has no line in docs/decisions.md"]);
    }

    #[test]
    fn what_only_looks_like_an_id_is_left_alone() {
        for text in [
            "// A23: one clock (T17).\n",
            "fn a<T1>(a: T1) {}\n",
            "const A: &str = \"// F12\";\n",
            "// 0xF5, U+00A0, `T1`, RP-A1, F-16, ABC12, A1b, D1234, A99-old\n",
            "// A Debian, in T-shirts, of I.\n",
        ] {
            assert_eq!(findings("a.rs", text), [""; 0], "{text}");
        }
        assert_eq!(findings("a.py", "f() # noqa: F821\n"), [""; 0]);
        assert_eq!(findings("a.json", "{\"a\": \"D9\"}\n"), [""; 0]);
    }

    #[test]
    fn a_doc_comment_that_leans_on_the_item_above_is_found() {
        for opening in [
            "The same again",
            "The same, later",
            "The same: x",
            "And again",
        ] {
            let found = |text: String| findings("a.rs", &text).len();
            assert_eq!(found(format!("/// {opening}.\n")), 1, "{opening}");
            assert_eq!(found(format!("//! {opening}.\n")), 1, "{opening}");
            // In the middle of a paragraph the sentence before it is the subject.
            let within = format!("/// A word.\n/// {opening}.\n");
            assert_eq!(found(within), 0, "{opening}");
            let paragraph = format!("/// A word.\n///\n/// {opening}.\n");
            assert_eq!(found(paragraph), 1, "{opening}");
        }
        assert_eq!(findings("a.rs", "/// Androids dream.\n"), [""; 0]);
    }

    #[test]
    fn an_index_without_ids_is_an_error() {
        assert!(defined("# Decisions\n").is_err());
    }
}
