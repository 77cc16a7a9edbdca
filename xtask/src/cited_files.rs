//! Source files that pages and comments name: each is there.
//!
//! Owns the rule that a path such as `xtask/src/main.rs` between backticks ends the path of a file
//! of the tree, so that a room that moves takes its signposts along. Pages of the guide show files
//! of the reader's own project, and tests make files up: neither is looked at.

use crate::scan;
use crate::source::File;

/// Folders of pages about the reader's own files.
const READERS_OWN: &str = "docs/guide/";

/// Cited files that are not among `paths`.
pub fn check(file: &File, paths: &[&str], findings: &mut Vec<String>) {
    if file.is_test() || file.path.starts_with(READERS_OWN) {
        return;
    }
    for (line, text) in prose(file) {
        for cited in cited(&text).filter(|cited| !is_there(cited, paths)) {
            findings.push(format!("{}:{line}: there is no `{cited}`", file.path));
        }
    }
}

fn is_there(cited: &str, paths: &[&str]) -> bool {
    let mut paths = paths.iter();
    paths.any(|path| {
        let before = path.strip_suffix(cited);
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    })
}

/// Lines for people, counted from 1: comments of a source, all of a page.
fn prose(file: &File) -> Vec<(usize, String)> {
    if file.path.ends_with(".rs") {
        scan::comments(&file.text)
    } else if file.path.ends_with(".md") {
        (1..).zip(file.text.lines().map(str::to_owned)).collect()
    } else {
        Vec::new()
    }
}

/// What stands between backticks and is the path of one Rust file.
fn cited(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |text: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        text.ends_with(".rs") && text.len() > ".rs".len() && text.chars().all(plain)
    };
    line.split('`').skip(1).step_by(2).filter(is_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let file = File {
            path: path.into(),
            text: text.into(),
        };
        let mut findings = Vec::new();
        let paths = ["crates/delta-a/src/writer/thread.rs", "xtask/src/main.rs"];
        check(&file, &paths, &mut findings);
        findings
    }

    #[test]
    fn a_file_that_is_cited_and_gone_is_found() {
        let text =
            "In `writer/thread.rs` and `thread.rs`.\nIn `delta-a/src/thread.rs`, `read.rs`.\n";
        assert_eq!(
            findings("docs/a.md", text),
            [
                "docs/a.md:2: there is no `delta-a/src/thread.rs`",
                "docs/a.md:2: there is no `read.rs`",
            ]
        );
        assert_eq!(
            findings(
                "xtask/src/a.rs",
                "//! See `gone.rs`.\nlet a = \"`code.rs`\";\n"
            ),
            ["xtask/src/a.rs:1: there is no `gone.rs`"]
        );
    }

    #[test]
    fn what_names_no_file_of_ours_is_left_alone() {
        for text in ["`*.rs`", "`.rs`", "`src/{a,b}.rs`", "a.rs", "`fn a()`"] {
            assert_eq!(findings("docs/a.md", text), [""; 0], "{text}");
        }
        assert_eq!(findings("docs/guide/a.md", "`src/bin/jobs.rs`"), [""; 0]);
        assert_eq!(findings("crates/a/tests/it/a.rs", "// `src/a.rs`"), [""; 0]);
    }
}
