//! The core stays pure, by machine.
//!
//! Owns the list of words that must not occur in `delta-core`: anything that reads a clock, draws
//! randomness, touches the outside, or iterates in an order that differs between two processes.
//! Test modules are free. That the crate has no dependencies is checked in `deps.rs`.

use anyhow::{Result, ensure};

use crate::steps::no_findings;
use crate::{scan, source};

const CORE: &str = "crates/delta-core/src/";

/// Each forbidden word, with what the core does instead.
const FORBIDDEN: [(&str, &str); 22] = [
    ("std::time", "`now` is an argument"),
    ("SystemTime", "`now` is an argument"),
    ("Instant", "`now` is an argument"),
    ("std::thread", "the core does one thing at a time"),
    ("thread_local!", "no hidden state"),
    ("static mut", "no hidden state"),
    ("std::fs", "effects are data"),
    ("std::io", "effects are data"),
    ("std::net", "effects are data"),
    ("std::process", "effects are data"),
    ("std::env", "settings are arguments"),
    ("rand", "randomness is an argument"),
    ("getrandom", "randomness is an argument"),
    (
        "HashMap",
        "its order differs between processes: use BTreeMap",
    ),
    (
        "HashSet",
        "its order differs between processes: use BTreeSet",
    ),
    ("println!", "events are data"),
    ("print!", "events are data"),
    ("eprintln!", "events are data"),
    ("f32", "integers replay the same everywhere"),
    ("f64", "integers replay the same everywhere"),
    ("async", "the core decides without waiting"),
    (
        "std::{",
        "name each import by its full path, so that this check can see it",
    ),
];

pub fn run() -> Result<()> {
    let mut findings = Vec::new();
    let mut seen = 0;
    for file in source::files(&[".rs"])? {
        if !file.path.starts_with(CORE) || file.is_test() {
            continue;
        }
        seen += 1;
        findings.extend(impurities(&file.path, &file.text));
    }
    ensure!(seen > 0, "no source file under {CORE}");
    no_findings(&findings)
}

fn impurities(path: &str, text: &str) -> Vec<String> {
    let code = scan::code_only(text);
    let end = scan::test_module_line(&code).unwrap_or(usize::MAX);
    let mut findings = Vec::new();
    for (number, line) in code
        .lines()
        .enumerate()
        .take_while(|(number, _)| *number < end)
    {
        for (word, instead) in FORBIDDEN {
            if scan::has_word(line, word) {
                findings.push(format!("{path}:{}: `{word}`: {instead}", number + 1));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_in_the_core_is_named_with_its_line() {
        let text = "//! No Instant here.\nuse std::time::Instant;\n";
        let found = impurities("a.rs", text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:2: "), "{found:?}");
    }

    #[test]
    fn test_modules_are_free() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    use std::collections::HashMap;\n}\n";
        assert!(impurities("a.rs", text).is_empty());
    }
}
