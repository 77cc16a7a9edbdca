//! The tools whose last line is counted, as `delta-results` reads it, and what takes that line
//! away from each.

use super::Heard;

/// One of them: how a call begins, words that take its last line away or run nothing, and where it
/// can be told how to print, by which options and with what the line stays.
struct Tool {
    words: &'static [&'static str],
    silent: &'static [&'static str],
    reporter: &'static [&'static str],
    stays: &'static [&'static str],
}

const fn tool(words: &'static [&'static str], silent: &'static [&'static str]) -> Tool {
    Tool {
        words,
        silent,
        reporter: &[],
        stays: &[],
    }
}

const fn reporting(
    words: &'static [&'static str],
    silent: &'static [&'static str],
    reporter: &'static [&'static str],
    stays: &'static [&'static str],
) -> Tool {
    Tool {
        words,
        silent,
        reporter,
        stays,
    }
}

const MOCHA: [&str; 8] = [
    "spec", "dot", "min", "list", "nyan", "landing", "progress", "tap",
];

const MOCHA_SILENT: [&str; 6] = [
    "--dry-run",
    "--list-files",
    "--list-reporters",
    "--list-interfaces",
    "--watch",
    "-w",
];

static TOOLS: [Tool; 24] = [
    tool(
        &["cargo", "test"],
        &["--no-run", "--list", "--format", "-h"],
    ),
    tool(&["cargo", "t"], &["--no-run", "--list", "--format", "-h"]),
    tool(&["cargo", "nextest", "run"], &["--no-run", "-h"]),
    tool(&["cargo", "nextest", "r"], &["--no-run", "-h"]),
    tool(
        &["go", "test"],
        &["-json", "--json", "-c", "-list", "-n", "-h"],
    ),
    tool(&["gotestsum"], &["tool", "--hide-summary", "--watch"]),
    tool(&["unittest"], &["-h"]),
    tool(&["manage.py", "test"], &["-h"]),
    tool(&["django-admin", "test"], &["-h"]),
    tool(&["django", "test"], &["-h"]),
    tool(&["nose2"], &["-h"]),
    tool(&["nosetests"], &["-h", "--collect-only"]),
    tool(&["trial"], &["--reporter"]),
    tool(
        &["ctest"],
        &[
            "-N",
            "--show-only",
            "-Q",
            "--quiet",
            "-S",
            "--build-and-test",
        ],
    ),
    tool(
        &["prove"],
        &["-D", "--dry", "--formatter", "-h", "-H", "--man"],
    ),
    reporting(
        &["jest"],
        &[
            "--json",
            "--listTests",
            "--showConfig",
            "--init",
            "--clearCache",
            "--watch",
            "--watchAll",
        ],
        &["--reporters"],
        &["default", "verbose", "summary"],
    ),
    reporting(
        &["vitest"],
        &[
            "list", "bench", "init", "dev", "watch", "--watch", "-w", "--ui",
        ],
        &["--reporter", "--reporters"],
        &["default", "dot", "basic", "verbose", "tree"],
    ),
    reporting(&["mocha"], &MOCHA_SILENT, &["--reporter", "-R"], &MOCHA),
    reporting(&["_mocha"], &MOCHA_SILENT, &["--reporter", "-R"], &MOCHA),
    tool(&["ava"], &["--watch", "-w", "reset-cache", "debug"]),
    reporting(
        &["jasmine"],
        &["init", "examples", "enumerate"],
        &["--reporter"],
        &[],
    ),
    tool(&["tape"], &[]),
    reporting(&["bun", "test"], &["--watch"], &["--reporter"], &[]),
    reporting(
        &["deno", "test"],
        &["--no-run", "--watch"],
        &["--reporter"],
        &["pretty", "dot"],
    ),
];

/// Words after which any tool does something else.
const ANY: [&str; 3] = ["--help", "--version", "--watch"];

/// What is heard of a program; pytest's own file tells it how much to say.
pub fn heard(words: &[String], verbosity: i32) -> Heard {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[0] {
        "pytest" | "py.test" => pytest(&words[1..], verbosity),
        "node" | "nodejs" => node(&words[1..]),
        "playwright" => playwright(&words[1..]),
        _ => known(&words),
    }
}

fn known(words: &[&str]) -> Heard {
    // Which toolchain, and what is told before the subcommand: `cargo +nightly --locked test`.
    let told = |word: &&&str| words[0] != "cargo" || !word.starts_with(['+', '-']);
    let shown: Vec<&&str> = words.iter().filter(told).collect();
    let begins = |it: &&Tool| {
        let pairs = it.words.iter().zip(&shown);
        shown.len() >= it.words.len() && pairs.clone().all(|(a, b)| *a == **b)
    };
    let Some(tool) = TOOLS.iter().find(begins) else {
        return Heard::Nothing;
    };
    let name = |word: &&str| word.split('=').next().unwrap_or_default().to_owned();
    let rest = &words[1..];
    let takes = |word: &&str| {
        let name = name(word);
        tool.silent.contains(&name.as_str()) || ANY.contains(&name.as_str())
    };
    if rest.iter().any(takes) || !reports(rest, tool.reporter, tool.stays) {
        Heard::Doubt
    } else {
        Heard::Count
    }
}

/// Whether one of the reporters that a call names is among these; so if it names none.
fn reports(words: &[&str], options: &[&str], stays: &[&str]) -> bool {
    let mut named = false;
    for (at, word) in words.iter().enumerate() {
        let (option, value) = word.split_once('=').unwrap_or((word, ""));
        let glued = options.iter().filter(|it| it.len() == 2);
        let mut glued = glued
            .filter_map(|it| word.strip_prefix(*it))
            .filter(|it| !it.is_empty());
        let value = match (options.contains(&option), glued.next()) {
            (true, _) if word.contains('=') => value,
            (true, _) => words.get(at + 1).copied().unwrap_or_default(),
            (false, Some(value)) => value,
            (false, None) => continue,
        };
        named = true;
        if value.split(',').any(|it| stays.contains(&it)) {
            return true;
        }
    }
    !named
}

/// `node --test`: with reporters of its own, and files for what they write.
fn node(words: &[&str]) -> Heard {
    if !words.contains(&"--test") {
        return Heard::Nothing;
    }
    let elsewhere = words
        .iter()
        .any(|it| it.starts_with("--test-reporter-destination"));
    let stays = reports(words, &["--test-reporter"], &["spec", "tap"]);
    if elsewhere || !stays || words.iter().any(|it| ANY.contains(it)) {
        Heard::Doubt
    } else {
        Heard::Count
    }
}

fn playwright(words: &[&str]) -> Heard {
    if words.first() != Some(&"test") {
        return Heard::Nothing;
    }
    let other = words
        .iter()
        .any(|it| matches!(*it, "--list" | "--ui" | "--help"));
    if other || !reports(words, &["--reporter"], &["list", "line", "dot"]) {
        Heard::Doubt
    } else {
        Heard::Count
    }
}

/// Words with which pytest runs nothing.
const PYTEST_SILENT: [&str; 12] = [
    "--collect-only",
    "--collectonly",
    "--co",
    "--fixtures",
    "--funcargs",
    "--markers",
    "--setup-plan",
    "--cache-show",
    "--version",
    "-V",
    "--help",
    "-h",
];

fn pytest(words: &[&str], verbosity: i32) -> Heard {
    let silent = words
        .iter()
        .any(|it| PYTEST_SILENT.contains(it) || it.ends_with("no:terminal"));
    // Told twice to be quiet, it leaves out the line that is counted.
    if silent || verbosity.saturating_add(told_verbosity(words)) <= -2 {
        Heard::Doubt
    } else {
        Heard::Count
    }
}

/// How much pytest is told to say by these words: below zero to be quiet.
pub fn told_verbosity(words: &[&str]) -> i32 {
    let mut told = 0_i32;
    for word in words {
        match *word {
            "--quiet" => told = told.saturating_sub(1),
            "--verbose" => told = told.saturating_add(1),
            word => {
                if let Some(value) = word.strip_prefix("--verbosity=") {
                    told = value.parse().unwrap_or(told);
                }
                let letters = word.strip_prefix('-').unwrap_or_default();
                if letters.chars().all(|c| "qvsxl".contains(c)) {
                    let count = |mark| letters.matches(mark).count();
                    let count = |mark| i32::try_from(count(mark)).unwrap_or(0);
                    told = told.saturating_add(count('v') - count('q'));
                }
            }
        }
    }
    told
}
