//! Small files, short functions, no leftovers: the house rules that a compiler does not check.
//!
//! Owns the limits. Each is a number with its reason; a file that breaks one is named with the
//! line. Prints median and ninetieth percentile of file lengths, so that growth is seen early.

use std::path::Path;

use anyhow::{Context, Result};

use crate::cited_files;
use crate::comments;
use crate::scan;
use crate::source::{self, File};
use crate::steps::no_findings;

/// Lines before the test module. Beyond this a file holds more than one idea.
const FILE_LINES: usize = 600;
/// What fits on a screen, with room for a doc comment.
const FUNCTION_LINES: usize = 70;
/// Two files side by side on a laptop.
const COLUMNS: usize = 100;

/// Leftovers in code. Split so that this file does not find itself.
const CODE_LEFTOVERS: [&str; 6] = [
    concat!("to", "do!"),
    concat!("un", "implemented!"),
    concat!("d", "bg!"),
    concat!("#[ig", "nore]"),
    concat!("#[ig", "nore ="),
    concat!("should_", "panic"),
];

/// Leftovers anywhere in a text file, comments and documents included.
const TEXT_LEFTOVERS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Folders of somebody's own machine; a path into one works nowhere else.
const MACHINE_PATHS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
];

const TEXT_FILES: [&str; 10] = [
    ".rs", ".md", ".toml", ".yaml", ".yml", ".sh", ".sql", ".py", ".json", ".ci/run",
];

pub fn run() -> Result<()> {
    let mut findings = Vec::new();
    let mut lengths = Vec::new();
    let index = std::fs::read_to_string(comments::INDEX)
        .with_context(|| format!("read {}", comments::INDEX))?;
    let ids = comments::defined(&index)?;
    let files = source::files(&TEXT_FILES)?;
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    for file in &files {
        leftovers_in_text(file, &mut findings);
        comments::check(file, &ids, &mut findings);
        cited_files::check(file, &paths, &mut findings);
        if file.path.ends_with(".md") {
            dead_links(file, |path| path.exists(), &mut findings);
        }
        if file.path.ends_with(".rs") {
            lengths.push(rust_file(file, &mut findings));
        }
    }
    lengths.sort_unstable();
    let at = |percent: usize| lengths[(lengths.len() - 1) * percent / 100];
    if !lengths.is_empty() {
        println!(
            "    {} Rust files, lines before tests: median {}, p90 {}, longest {}",
            lengths.len(),
            at(50),
            at(90),
            at(100)
        );
    }
    no_findings(&findings)
}

fn leftovers_in_text(file: &File, findings: &mut Vec<String>) {
    for (number, line) in file.text.lines().enumerate() {
        let words = TEXT_LEFTOVERS
            .iter()
            .filter(|word| scan::has_word(line, word));
        let paths = MACHINE_PATHS
            .iter()
            .filter(|path| starts_a_path(line, path));
        for found in words.chain(paths) {
            findings.push(format!("{}:{}: `{found}`", file.path, number + 1));
        }
    }
}

/// A relative link of a document must lead to something in the tree.
fn dead_links(file: &File, exists: impl Fn(&Path) -> bool, findings: &mut Vec<String>) {
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let mut in_code = false;
    for (number, line) in file.text.lines().enumerate() {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            continue;
        }
        for target in links(line) {
            let path = target.split('#').next().unwrap_or_default();
            let elsewhere = path.is_empty() || path.contains(':');
            if !elsewhere && !exists(&folder.join(path)) {
                let place = format!("{}:{}", file.path, number + 1);
                findings.push(format!("{place}: the link to `{target}` leads nowhere"));
            }
        }
    }
}

/// What stands between `](` and `)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let after = line.split("](").skip(1);
    after.filter_map(|rest| rest.split([')', ' ']).next())
}

/// `/x/` counts when a path begins there, not in the middle of one such as `/api/x/`.
fn starts_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-./}*~".contains(c))
    })
}

/// Checks one Rust file; the answer is its length without the test module.
fn rust_file(file: &File, findings: &mut Vec<String>) -> usize {
    let path = &file.path;
    let code = scan::code_only(&file.text);
    let lines: Vec<&str> = file.text.lines().collect();
    let tests_at = scan::test_module_line(&code).unwrap_or(lines.len());
    if !file.text.starts_with("//!") {
        findings.push(format!(
            "{path}:1: does not open with `//!`: what it owns, what it refuses"
        ));
    }
    if tests_at > FILE_LINES {
        findings.push(format!(
            "{path}: {tests_at} lines before its tests, at most {FILE_LINES}"
        ));
    }
    for (number, line) in lines.iter().enumerate() {
        let in_tests = file.is_test() || number >= tests_at;
        if line.chars().count() > COLUMNS && !may_be_long(line, in_tests) {
            findings.push(format!(
                "{path}:{}: wider than {COLUMNS} columns",
                number + 1
            ));
        }
    }
    for (number, line) in code.lines().enumerate() {
        for word in CODE_LEFTOVERS
            .iter()
            .filter(|word| scan::has_word(line, word))
        {
            findings.push(format!("{path}:{}: `{word}`", number + 1));
        }
    }
    if !file.is_test() {
        let own = scan::functions(&code)
            .into_iter()
            .filter(|f| f.lines.start < tests_at);
        for function in own.filter(|f| f.lines.len() > FUNCTION_LINES) {
            let (name, long) = (&function.name, function.lines.len());
            let line = function.lines.start + 1;
            findings.push(format!(
                "{path}:{line}: `{name}` has {long} lines of {FUNCTION_LINES}"
            ));
        }
    }
    tests_at
}

/// An address cannot be broken, and a long literal in a test is data.
fn may_be_long(line: &str, in_tests: bool) -> bool {
    line.contains("://") || (in_tests && line.contains('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<String> {
        let file = File {
            path: "crates/a/src/lib.rs".into(),
            text: text.into(),
        };
        let mut findings = Vec::new();
        leftovers_in_text(&file, &mut findings);
        rust_file(&file, &mut findings);
        findings
    }

    #[test]
    fn a_clean_file_has_no_findings() {
        assert_eq!(
            check("//! Owns nothing.\n\nfn a() {}\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_house_rule_is_found() {
        let long_function = format!("//! A.\nfn a() {{\n{}}}\n", "    b();\n".repeat(70));
        assert!(check(&long_function)[0].contains("72 lines"));
        assert_eq!(check("fn a() {}\n").len(), 1);
        assert_eq!(check(&format!("//! A.\n// {}\n", "x".repeat(100))).len(), 1);
        assert_eq!(
            check(&format!("//! A.\n// {} it\n", TEXT_LEFTOVERS[0])).len(),
            1
        );
        assert_eq!(
            check(&format!("//! A.\nfn a() {{ {}() }}\n", CODE_LEFTOVERS[0])).len(),
            1
        );
        assert_eq!(
            check(&format!("//! A.\n// see {}x\n", MACHINE_PATHS[0])).len(),
            1
        );
        assert_eq!(
            check(&format!("//! A.\n// see /api{}x\n", MACHINE_PATHS[0])).len(),
            0
        );
        assert_eq!(check(&format!("//! A.\n{}", "// x\n".repeat(600))).len(), 1);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let file = File {
            path: "docs/a.md".into(),
            text: "[b](b.md#top) [c](../c.md) [d](https://d.example) [e](#e)\n[f](f.md \"F\")\n\
                   ```\n[g](g.md)\n```\n"
                .into(),
        };
        let mut findings = Vec::new();
        dead_links(&file, |path| path == Path::new("docs/b.md"), &mut findings);
        assert_eq!(
            findings,
            [
                "docs/a.md:1: the link to `../c.md` leads nowhere",
                "docs/a.md:2: the link to `f.md` leads nowhere",
            ]
        );
    }

    #[test]
    fn test_modules_may_hold_long_literals_and_functions() {
        let body = "        b();\n".repeat(80);
        let text = "x".repeat(100);
        let file = format!(
            "//! A.\n#[cfg(test)]\nmod tests {{\n    fn a() {{\n{body}    \"{text}\"\n    }}\n}}\n"
        );
        assert_eq!(check(&file), Vec::<String>::new());
    }
}
