//! Every rule of the specifications is shown by a test that exists, or says what it waits for.
//!
//! Owns the reading of `docs/spec-coverage.md`: tables of rule, meaning, shown by. A cell "shown
//! by" names tests as `crate::path::test_name`, or says `not yet: <subject>`, or both. It fails on
//! a rule that is missing or listed twice and on a test nobody wrote. It cannot tell whether a test
//! is any good: that is what reading is for.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use crate::scan;
use crate::source::{self, File};
use crate::steps::no_findings;

const TABLE: &str = "docs/spec-coverage.md";

/// The rules: family and how many it has, numbered from 1.
const RULES: [(&str, u32); 5] = [("RP", 61), ("SM", 70), ("LM", 30), ("EP", 56), ("RQ", 45)];

/// What a rule may wait for.
const SUBJECTS: [&str; 2] = ["queue dispatch", "conformance kit"];

/// What a cell says while nobody has named its test.
const UNASSIGNED: &str = "(unassigned)";

/// How rules without a named test are judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unassigned {
    Warns,
    Fails,
}

/// What `check` and `test` use.
pub const DEFAULT: Unassigned = Unassigned::Fails;

pub fn run(unassigned: Unassigned) -> Result<()> {
    let table = std::fs::read_to_string(TABLE).with_context(|| format!("read {TABLE}"))?;
    let rows = rows(&table);
    let tests = Tests::of(&source::files(&[".rs"])?);
    let mut findings = missing_or_double(&rows);
    let mut open = Vec::new();
    let mut waiting: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in &rows {
        let cell = Cell::read(row.shown_by);
        findings.extend(
            cell.problems
                .iter()
                .map(|problem| format!("{}: {problem}", row.rule)),
        );
        for name in cell.tests.iter().filter(|name| !tests.has(name)) {
            findings.push(format!("{}: no test `{name}`", row.rule));
        }
        for subject in cell.waits_for {
            waiting.entry(subject).or_default().push(row.rule);
        }
        if cell.unassigned {
            open.push(row.rule);
        }
    }
    print_waiting(&waiting);
    if !open.is_empty() && unassigned == Unassigned::Warns {
        println!("    warning: {} rule(s) name no test yet", open.len());
    } else {
        findings.extend(open.iter().map(|rule| format!("{rule}: {UNASSIGNED}")));
    }
    no_findings(&findings)
}

fn print_waiting(waiting: &BTreeMap<&str, Vec<&str>>) {
    let rules: BTreeSet<&&str> = waiting.values().flatten().collect();
    println!("    not yet: {} rule(s)", rules.len());
    for (subject, rules) in waiting {
        println!("      {subject}: {} ({})", rules.len(), rules.join(", "));
    }
}

struct Row<'a> {
    rule: &'a str,
    shown_by: &'a str,
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let families: Vec<String> = RULES
        .iter()
        .map(|(family, _)| format!("{family}-"))
        .collect();
    table
        .lines()
        .filter_map(|line| {
            let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
            let rule = inner.split('|').next()?.trim();
            // The meaning may hold an escaped bar; the last cell never does.
            let shown_by = inner.rsplit('|').next()?.trim();
            let known = families
                .iter()
                .any(|family| rule.starts_with(family.as_str()));
            known.then_some(Row { rule, shown_by })
        })
        .collect()
}

fn missing_or_double(rows: &[Row<'_>]) -> Vec<String> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (family, last) in RULES {
        counts.extend((1..=last).map(|number| (format!("{family}-{number}"), 0)));
    }
    let mut findings = Vec::new();
    for row in rows {
        match counts.get_mut(row.rule) {
            Some(count) => *count += 1,
            None => findings.push(format!("{}: no such rule", row.rule)),
        }
    }
    for (rule, count) in counts {
        match count {
            0 => findings.push(format!("{rule}: missing from {TABLE}")),
            1 => {}
            _ => findings.push(format!("{rule}: listed {count} times")),
        }
    }
    findings
}

#[derive(Default)]
struct Cell<'a> {
    tests: Vec<&'a str>,
    waits_for: Vec<&'static str>,
    unassigned: bool,
    problems: Vec<String>,
}

impl<'a> Cell<'a> {
    fn read(text: &'a str) -> Self {
        let mut cell = Cell {
            unassigned: text.contains(UNASSIGNED),
            ..Cell::default()
        };
        let mut plain = String::new();
        for (index, part) in text.split('`').enumerate() {
            if index % 2 == 0 {
                plain.push_str(part);
            } else if let Some(subjects) = part.strip_prefix("not yet:") {
                cell.wait(subjects);
            } else {
                cell.tests.push(part);
            }
        }
        if let Some((_, subjects)) = plain.split_once("not yet:") {
            cell.wait(subjects);
        }
        if cell.tests.is_empty() && cell.waits_for.is_empty() && !cell.unassigned {
            cell.problems
                .push(format!("says neither a test nor `not yet`: {text:?}"));
        }
        cell
    }

    fn wait(&mut self, subjects: &str) {
        for subject in subjects.split(',').map(str::trim) {
            match SUBJECTS.iter().find(|known| **known == subject) {
                Some(known) => self.waits_for.push(known),
                None => self
                    .problems
                    .push(format!("not yet: {subject:?} is none of {SUBJECTS:?}")),
            }
        }
    }
}

/// The tests of the workspace: crate and name, and the modules whose files have one of that name.
struct Tests {
    modules: BTreeMap<(String, String), Vec<Vec<String>>>,
}

impl Tests {
    fn of(files: &[File]) -> Self {
        let mut modules: BTreeMap<(String, String), Vec<Vec<String>>> = BTreeMap::new();
        for file in files {
            let Some(name) = crate_of(&file.path) else {
                continue;
            };
            for test in tests_in(&scan::code_only(&file.text)) {
                let known = modules.entry((name.clone(), test)).or_default();
                known.push(module_of(&file.path));
            }
        }
        Tests { modules }
    }

    /// `delta-core::lease::tests::late_complete_is_stale`: the crate, the modules of the file and
    /// the last word. Modules below the file's own are not looked at.
    fn has(&self, path: &str) -> bool {
        let mut words: Vec<&str> = path.split("::").collect();
        let (Some(test), true) = (words.pop(), !words.is_empty()) else {
            return false;
        };
        let package = words.remove(0).replace('_', "-");
        words.retain(|word| *word != UNIT_TESTS);
        let known = self.modules.get(&(package, test.to_owned()));
        known.is_some_and(|known| known.iter().any(|file| is_below(&words, file)))
    }
}

/// The module of unit tests, which paths may name or not.
const UNIT_TESTS: &str = "tests";

fn is_below(words: &[&str], file: &[String]) -> bool {
    words.len() >= file.len() && words.iter().zip(file).all(|(word, part)| word == part)
}

/// The modules that a file stands for: `crates/delta-core/src/decide/mod.rs` is `decide`.
fn module_of(path: &str) -> Vec<String> {
    let inside = ["/src/", "/tests/it/", "tests/it/", "/tests/"];
    let below = inside.iter().find_map(|folder| path.split_once(folder));
    let below = below.map_or(path, |(_, below)| below);
    let parts = below.trim_end_matches(".rs").split('/');
    let named = parts.filter(|part| !["mod", "lib", "main", UNIT_TESTS].contains(part));
    named.map(str::to_owned).collect()
}

fn crate_of(path: &str) -> Option<String> {
    let mut parts = path.split('/');
    match parts.next()? {
        "crates" => parts.next().map(str::to_owned),
        "tests" => Some("delta-e2e".to_owned()),
        "xtask" => Some("xtask".to_owned()),
        _ => None,
    }
}

/// Functions under a test attribute, and names in a list from which a macro makes tests.
fn tests_in(code: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found: BTreeSet<String> = BTreeSet::new();
    for function in scan::functions(code) {
        if under_test_attribute(&lines[..=function.lines.start]) {
            found.insert(function.name);
        }
    }
    for line in &lines {
        let item = line.trim();
        let word: String = item
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let rest = item[word.len()..].trim();
        // A test's name is a sentence; a single word in a list is more likely a field.
        if word.contains('_') && (rest.is_empty() || rest == "," || rest.starts_with("=>")) {
            found.insert(word);
        }
    }
    found
}

fn under_test_attribute(until: &[&str]) -> bool {
    let above = until.iter().rev().map(|line| line.trim());
    above
        .take_while(|line| line.contains("fn ") || !line.ends_with(['}', ';', '{']))
        .any(|line| line.starts_with("#[") && scan::has_word(line, "test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_names_tests_or_what_it_waits_for() {
        let cell = Cell::read("`delta-core::a_b`, `delta-e2e::c_d`; not yet: queue dispatch");
        assert_eq!(cell.tests, ["delta-core::a_b", "delta-e2e::c_d"]);
        assert_eq!(cell.waits_for, ["queue dispatch"]);
        assert_eq!(
            Cell::read("`not yet: conformance kit`").waits_for,
            ["conformance kit"]
        );
        assert!(Cell::read("(unassigned)").unassigned);
        assert_eq!(Cell::read("later").problems.len(), 1);
        assert_eq!(Cell::read("not yet: someday").problems.len(), 2);
    }

    #[test]
    fn a_row_is_missing_double_or_unknown() {
        let rows =
            rows("| RP-1 | a \\| b | x |\n| RP-1 | a | y |\n| RP-99 | a | z |\n|---|---|---|");
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0].shown_by, "x");
        let findings = missing_or_double(&rows);
        let all: u32 = RULES.iter().map(|(_, count)| count).sum();
        // Once too often, unknown, and all the others missing.
        assert_eq!(findings.len(), 1 + 1 + all as usize - 1);
    }

    #[test]
    fn only_real_tests_are_found() {
        let code = "fn helper_fn() {}\n#[test]\nfn it_works() {}\n#[tokio::test(start)]\n\
                    async fn it_waits() {}\nsuite! {\n    race_is_won,\n    crash => x,\n}\n";
        let found = tests_in(code);
        let names: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(names, ["it_waits", "it_works", "race_is_won"]);
    }

    #[test]
    fn a_test_is_looked_up_where_its_path_says() {
        let file = |path: &str, name: &str| File {
            path: path.into(),
            text: format!("#[test]\nfn {name}() {{}}\n"),
        };
        let tests = Tests::of(&[
            file("crates/delta-core/src/x/mod.rs", "a_b"),
            file("crates/delta-agent/tests/it/y.rs", "c_d"),
            file("tests/it/z/main.rs", "e_f"),
        ]);
        for there in [
            "delta_core::x::a_b",
            "delta-core::x::tests::a_b",
            "delta-core::x::deeper::a_b",
            "delta-agent::y::c_d",
            "delta-e2e::z::e_f",
        ] {
            assert!(tests.has(there), "{there}");
        }
        for elsewhere in [
            "delta-store::x::a_b",
            "delta-core::a_b",
            "delta-core::w::a_b",
            "a_b",
        ] {
            assert!(!tests.has(elsewhere), "{elsewhere}");
        }
    }
}
