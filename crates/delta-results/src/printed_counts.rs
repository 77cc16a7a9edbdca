//! How many tests ran, by what their tools print: the lines with which they end, and those by which
//! they say that there was nothing to run.
//!
//! Only counts come of it, never a case. None is told only by a tool that says so: output in which
//! no line is known tells of nothing. What is printed is the job's own, and hostile: lines are
//! looked at one by one up to a bound, and a number that no run could have is none.

use std::io::{self, BufRead};

use crate::printed_lines::{self, LINE, step_begun, without_colours};

/// Tests that one line may tell of. More is something else.
const MOST: u64 = 1_000_000_000;

/// What was printed about tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// Tests that passed or failed.
    pub ran: u64,
    /// Packages in which at least one ran, of tools that name those and no tests.
    pub packages: u64,
    pub skipped: u64,
    /// A line of a tool was there, whatever it told of.
    pub told: bool,
    /// The exit code with which a tool fails that said it found nothing to run.
    pub none_exit: Option<i32>,
    /// The exit code that make says a recipe ended with; its own is another one.
    pub made_exit: Option<i32>,
}

impl Printed {
    fn add(&mut self, ran: u64, skipped: u64) {
        self.told = true;
        self.ran = self.ran.saturating_add(ran);
        self.skipped = self.skipped.saturating_add(skipped);
    }

    /// Some of those that were counted did not run after all.
    fn take_back(&mut self, skipped: u64) {
        let skipped = skipped.min(self.ran);
        self.ran -= skipped;
        self.skipped = self.skipped.saturating_add(skipped);
    }
}

/// Reads what was printed to its end. The caller bounds how much that is.
pub fn printed(input: impl BufRead) -> io::Result<Printed> {
    let mut counted = Printed::default();
    printed_lines::each(input, &mut |line| hear(line, &mut counted))?;
    Ok(counted)
}

fn hear(line: &[u8], counted: &mut Printed) {
    if line.is_empty() || line.len() >= LINE {
        return;
    }
    let plain = without_colours(line);
    let Ok(text) = std::str::from_utf8(&plain) else {
        return;
    };
    let text = text.trim_end();
    // What an earlier step said is no reason for the end of this one.
    if step_begun(text).is_some() {
        (counted.none_exit, counted.made_exit) = (None, None);
        return;
    }
    counted.none_exit = none_exit(text.trim_start()).or(counted.none_exit);
    counted.made_exit = made_exit(text).or(counted.made_exit);
    if let Some((ran, skipped)) = told(text) {
        counted.add(ran, skipped);
    } else if let Some(skipped) = told_later(text.trim_start()) {
        counted.take_back(skipped);
    } else if let Some(packages) = go_package(text) {
        counted.told = true;
        counted.packages = counted.packages.saturating_add(packages);
    } else if says_none(text.trim_start()) {
        counted.told = true;
    }
}

/// Beginnings of lines by which tools say that they found nothing to run.
const NONE: [&str; 12] = [
    // unittest
    "NO TESTS RAN",
    // Jest, Bun
    "No tests found",
    // Vitest
    "No test files found",
    "Tests  no tests",
    // Jasmine
    "Incomplete: No specs found",
    // nextest
    "error: no tests to run",
    // prove
    "Result: NOTESTS",
    // CTest
    "No tests were found!!!",
    // PHPUnit
    "No tests executed!",
    // RSpec
    "No examples found.",
    // Playwright
    "Error: No tests found",
    // Mocha
    "Error: No test files found",
];

/// Beginnings of lines by which tools that fail for it say that they found nothing to run, and the
/// exit code with which each does.
const FAILING: [(&str, i32); 6] = [
    // unittest, since Python 3.12
    ("NO TESTS RAN", 5),
    // Bun
    ("No tests found!", 1),
    // Jest
    ("No tests found, exiting with code 1", 1),
    // Vitest
    ("No test files found, exiting with code 1", 1),
    // Playwright
    ("Error: No tests found", 1),
    // Mocha
    ("Error: No test files found", 1),
];

/// The exit code of a tool that fails as it found nothing to run, and says so in this line.
fn none_exit(text: &str) -> Option<i32> {
    let failing = FAILING.iter().find(|(start, _)| text.starts_with(start));
    let nextest = || text.starts_with("error: no tests to run").then_some(4);
    let pytest = || (pytest(text) == Some((0, 0))).then_some(5);
    failing
        .map(|failing| failing.1)
        .or_else(nextest)
        .or_else(pytest)
}

/// `make: *** [Makefile:2: test] Error 5`
fn made_exit(text: &str) -> Option<i32> {
    let rest = text.strip_prefix("make")?;
    let (_, code) = rest.split_once(": *** [")?.1.rsplit_once("] Error ")?;
    code.parse().ok()
}

/// Whether a line says that nothing ran: of a tool itself, or of what it was to be run in.
fn says_none(text: &str) -> bool {
    if NONE.iter().any(|it| text.starts_with(it)) {
        return true;
    }
    // `  py39: SKIP (0.04 seconds)`
    let tox = text.split_once(": ").is_some_and(|(name, rest)| {
        let skipped = rest.starts_with("SKIP (") || rest.starts_with("NOT AVAILABLE (");
        skipped && rest.ends_with(" seconds)") && !name.contains(' ')
    });
    // `nox > Session tests-3.9 skipped: Python interpreter 3.9 not found.`
    let nox = text.strip_prefix("nox > Session ");
    tox || nox.is_some_and(|nox| nox.contains(" skipped: ") || nox.ends_with(" skipped."))
}

/// Tests that ran and that were skipped, where a line is the last of a tool.
fn told(line: &str) -> Option<(u64, u64)> {
    let text = line.trim_start();
    rust(text)
        .or_else(|| pytest(text))
        .or_else(|| gotestsum(line))
        .or_else(|| node(text))
        .or_else(|| javascript(text))
        .or_else(|| others(text))
}

/// cargo test, nextest.
fn rust(text: &str) -> Option<(u64, u64)> {
    if let Some(rest) = text.strip_prefix("test result: ") {
        let (_, list) = rest.split_once(". ")?;
        let counts = Items::of(list, ';');
        let ran = counts.sum(&["passed", "failed", "measured"])?;
        return Some((ran, counts.of_word("ignored")));
    }
    let rest = text.strip_prefix("Summary [")?;
    let (_, rest) = rest.split_once("] ")?;
    let (ran, list) = rest.split_once(": ")?;
    // `3/5 tests run` where it ended early.
    let ran = ran.strip_suffix(" run")?;
    let ran = ran.split_once('/').map_or(ran, |(ran, _)| ran);
    let ran = number(ran.split(' ').next()?)?;
    Some((ran, Items::of(list, ',').of_word("skipped")))
}

/// `=== 3 passed, 1 skipped in 0.12s ===`, with `-q` without the frame.
fn pytest(text: &str) -> Option<(u64, u64)> {
    let text = text.trim_matches(['=', ' ']);
    let (list, time) = text.rsplit_once(" in ")?;
    let (seconds, rest) = time.split_once(' ').unwrap_or((time, "("));
    seconds.strip_suffix('s')?.parse::<f64>().ok()?;
    if !rest.starts_with('(') {
        return None;
    }
    if list == "no tests ran" {
        return Some((0, 0));
    }
    let counts = Items::of(list, ',');
    let known = [
        "passed",
        "failed",
        "error",
        "skipped",
        "xfailed",
        "xpassed",
        "deselected",
        "warning",
        "rerun",
        "subtests",
    ];
    if !counts.are_all(&known) {
        return None;
    }
    let ran = ["passed", "failed", "error", "xfailed", "xpassed"]
        .iter()
        .map(|word| counts.of_word(word))
        .sum();
    Some((ran, counts.of_word("skipped")))
}

/// `DONE 12 tests, 2 skipped in 0.1s` of gotestsum.
fn gotestsum(line: &str) -> Option<(u64, u64)> {
    let rest = line.strip_prefix("DONE ")?;
    let (list, _) = rest.rsplit_once(" in ")?;
    let counts = Items::of(list, ',');
    let all = counts.sum(&["test"])?;
    let skipped = counts.of_word("skipped").min(all);
    Some((all - skipped, skipped))
}

/// `ok example.org/a 0.01s` with tabs between: a package of Go in which at least one test ran, or
/// none. How many ran in it is not told.
fn go_package(line: &str) -> Option<u64> {
    let mut parts = line.split('\t');
    let verdict = parts.next()?.trim_end();
    let package = parts.next()?;
    let rest: Vec<&str> = parts.collect();
    if !matches!(verdict, "ok" | "FAIL" | "?") || package.contains(' ') || rest.is_empty() {
        return None;
    }
    let nothing = rest.iter().any(|it| it.contains("[no test"));
    // A question mark is for packages without files of tests only.
    (verdict != "?" || nothing).then_some(u64::from(!nothing))
}

/// `# tests 3` of node's own runner and of tape, `ℹ tests 3` on a terminal.
fn node(text: &str) -> Option<(u64, u64)> {
    let rest = text.strip_prefix("# ").or(text.strip_prefix("ℹ "))?;
    let count = rest.strip_prefix("tests ")?;
    Some((number(count.trim())?, 0))
}

/// Jest, Vitest, Mocha, AVA, Jasmine, Bun, Deno, Playwright.
fn javascript(text: &str) -> Option<(u64, u64)> {
    let jest = text.strip_prefix("Tests:").map(|rest| (rest, ','));
    let vitest = text.strip_prefix("Tests  ").map(|rest| (rest, '|'));
    if let Some((list, mark)) = jest.or(vitest) {
        let list = list.split(" (").next()?;
        let counts = Items::of(list, mark);
        let known = ["passed", "failed", "skipped", "todo", "total", "pending"];
        if !counts.are_all(&known) {
            return None;
        }
        let skipped = counts.of_word("skipped") + counts.of_word("pending");
        return Some((counts.of_word("passed") + counts.of_word("failed"), skipped));
    }
    if let Some(list) = text
        .strip_prefix("ok | ")
        .or(text.strip_prefix("FAILED | "))
    {
        let counts = Items::of(list.split(" (").next()?, '|');
        let ran = counts.sum(&["passed", "failed"])?;
        return Some((ran, counts.of_word("ignored")));
    }
    let (count, word) = text.split_once(' ')?;
    let count = number(count)?;
    // `3 passing (12ms)`
    let word = match word.split_once(" (") {
        Some((word, rest)) if rest.ends_with(')') => word,
        Some(_) => return None,
        None => word,
    };
    match word {
        "passing" | "failing" | "pass" | "fail" | "passed" => Some((count, 0)),
        "test passed" | "tests passed" | "test failed" | "tests failed" => Some((count, 0)),
        "pending" | "skip" | "test skipped" | "tests skipped" => Some((0, count)),
        _ => None,
    }
}

/// unittest, CTest, GoogleTest, prove, RSpec, minitest, PHPUnit, Automake.
fn others(text: &str) -> Option<(u64, u64)> {
    if let Some(rest) = text.strip_prefix("Ran ") {
        let (count, rest) = rest.split_once(' ')?;
        let unittest = rest.starts_with("test in ") || rest.starts_with("tests in ");
        return unittest.then(|| number(count)).flatten().map(|it| (it, 0));
    }
    // `100% tests passed, 0 tests failed out of 12`
    if let Some((share, rest)) = text.split_once("% tests passed") {
        let (_, all) = rest.split_once(" out of ")?;
        return number(share).and(number(all)).map(|number| (number, 0));
    }
    if let Some(rest) = text.strip_prefix("[==========] ") {
        return if rest.contains(" ran.") {
            Some((number(rest.split(' ').next()?)?, 0))
        } else {
            None
        };
    }
    if let Some(rest) = text.strip_prefix("Files=") {
        let (_, rest) = rest.split_once("Tests=")?;
        return Some((number(rest.split(',').next()?)?, 0));
    }
    if let Some(rest) = text.strip_prefix("OK (") {
        let counts = Items::of(rest.split(')').next()?, ',');
        return Some((counts.sum(&["test"])?, 0)).filter(|_| rest.contains("assertion"));
    }
    if let Some(count) = text.strip_prefix("# TOTAL:") {
        return Some((number(count.trim())?, 0));
    }
    let counts = Items::of(text, ',');
    let known = [
        "example",
        "spec",
        "run",
        "test",
        "assertion",
        "failure",
        "error",
        "skip",
        "pending",
        "omission",
        "notification",
        "pending spec",
    ];
    let whole = counts.0.len() > 1 && counts.are_all(&known) && text.contains(" failure");
    let ran = counts.sum(&["example", "spec", "run", "test"]);
    ran.filter(|_| whole).map(|all| {
        let skipped = counts.of_word("pending") + counts.of_word("skip");
        (all.saturating_sub(skipped), skipped)
    })
}

/// What a later line says of tests that were counted: `OK (skipped=2)`, `# skipped 2`.
fn told_later(text: &str) -> Option<u64> {
    let rest = text.strip_prefix("# ").or(text.strip_prefix("ℹ "));
    if let Some(count) =
        rest.and_then(|rest| rest.strip_prefix("skipped ").or(rest.strip_prefix("skip ")))
    {
        return number(count.trim());
    }
    let list = text
        .strip_prefix("OK (")
        .or(text.strip_prefix("FAILED ("))?;
    let mut items = list.strip_suffix(')')?.split(", ");
    number(items.find_map(|item| item.strip_prefix("skipped="))?)
}

/// `3 passed, 1 skipped`: numbers, each with what it counts, in the singular.
struct Items<'l>(Vec<(u64, &'l str)>);

impl<'l> Items<'l> {
    /// Up to the first that is no such pair: a time may stand behind them.
    fn of(list: &'l str, mark: char) -> Items<'l> {
        let pairs = list.split(mark).map(|item| {
            let (count, word) = item.trim().split_once(' ')?;
            Some((number(count)?, word.trim()))
        });
        Items(pairs.map_while(|pair| pair).collect())
    }

    fn is(said: &str, word: &str) -> bool {
        said == word || said.strip_suffix('s') == Some(word) || said.split(' ').next() == Some(word)
    }

    fn of_word(&self, word: &str) -> u64 {
        let of = self.0.iter().filter(|(_, said)| Items::is(said, word));
        of.map(|(count, _)| count).sum()
    }

    /// All of these together, if one of them is there.
    fn sum(&self, words: &[&str]) -> Option<u64> {
        let there = |word: &&&str| self.0.iter().any(|(_, said)| Items::is(said, word));
        let there: Vec<&&str> = words.iter().filter(there).collect();
        (!there.is_empty()).then(|| there.iter().map(|word| self.of_word(word)).sum())
    }

    fn are_all(&self, words: &[&str]) -> bool {
        let known = |said: &str| words.iter().any(|word| Items::is(said, word));
        !self.0.is_empty() && self.0.iter().all(|(_, said)| known(said))
    }
}

fn number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number <= MOST && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> (u64, u64, bool) {
        let it = printed(text.as_bytes()).expect("memory");
        (it.ran, it.skipped, it.told)
    }

    fn packages(text: &str) -> (u64, bool) {
        let it = printed(text.as_bytes()).expect("memory");
        assert_eq!((it.ran, it.skipped), (0, 0), "{text}");
        (it.packages, it.told)
    }

    /// What tools print at their end, and what that tells of: ran, skipped.
    const ENDS: &[(&str, u64, u64)] = &[
        (
            "running 0 tests\n\ntest result: ok. 3 passed; 1 failed; 2 ignored; 0 measured; \
                 9 filtered out; finished in 0.01s\n\ntest result: ok. 0 passed; 0 failed; \
                 0 ignored; 0 measured; 0 filtered out\n",
            4,
            2,
        ),
        (
            "     Summary [   0.010s] 3 tests run: 3 passed, 1 skipped\n",
            3,
            1,
        ),
        (
            "     Summary [   0.010s] 2/5 tests run: 1 passed, 1 failed\n",
            2,
            0,
        ),
        (
            "============== 297 passed, 2 skipped in 1.20s ==============\n",
            297,
            2,
        ),
        (
            "\x1b[32m\x1b[1m3 passed\x1b[0m, \x1b[33m1 warning\x1b[0m in 0.02s\n",
            3,
            0,
        ),
        (
            "= 1 failed, 2 passed, 1 xfailed in 75.10s (0:01:15) =",
            4,
            0,
        ),
        ("===== no tests ran in 0.01s =====\n", 0, 0),
        ("== 4 skipped in 0.01s ==\n", 0, 4),
        (
            "....\n----\nRan 4 tests in 0.003s\n\nOK (skipped=4)\n",
            0,
            4,
        ),
        ("Ran 1 test in 0.000s\n\nOK\n", 1, 0),
        ("Ran 0 tests in 0.000s\n\nNO TESTS RAN\n", 0, 0),
        ("DONE 12 tests, 2 skipped in 0.100s\n", 10, 2),
        (
            "# tests 3\n# suites 0\n# pass 2\n# fail 0\n# cancelled 0\n# skipped 1\n",
            2,
            1,
        ),
        ("ℹ tests 3\nℹ skipped 0\n", 3, 0),
        ("Tests:       1 skipped, 3 passed, 4 total\n", 3, 1),
        ("      Tests  3 passed | 1 skipped (4)\n", 3, 1),
        ("  3 passing (12ms)\n  1 pending\n  1 failing\n", 4, 1),
        ("  3 tests passed\n  1 test skipped\n", 3, 1),
        ("3 specs, 0 failures, 1 pending spec\n", 2, 1),
        (" 3 pass\n 0 fail\n", 3, 0),
        ("ok | 3 passed | 0 failed | 1 ignored (12ms)\n", 3, 1),
        ("  3 passed (2.1s)\n", 3, 0),
        ("100% tests passed, 0 tests failed out of 12\n", 12, 0),
        (
            "[==========] 12 tests from 3 test suites ran. (4 ms total)\n",
            12,
            0,
        ),
        ("Files=3, Tests=12,  0 wallclock secs\n", 12, 0),
        ("3 examples, 0 failures\n", 3, 0),
        (
            "3 runs, 5 assertions, 0 failures, 0 errors, 1 skips\n",
            2,
            1,
        ),
        ("OK (3 tests, 5 assertions)\n", 3, 0),
        ("# TOTAL: 7\n", 7, 0),
        ("100% tests passed out of 12\n", 12, 0),
        ("=== 2 passed, 3 subtests passed in 0.02s ===\n", 2, 0),
        ("=== 2 deselected in 0.02s ===\n", 0, 0),
    ];

    /// As tools print them on a terminal that has colours, and where lines end as on Windows.
    const ON_A_TERMINAL: &[(&str, u64, u64)] = &[
        (
            "\x1b[32m======= \x1b[32m\x1b[1m1 passed\x1b[0m, \x1b[33m1 skipped\x1b[0m\x1b[32m in \
             0.01s\x1b[0m\x1b[32m =======\x1b[0m\r\n",
            1,
            1,
        ),
        (
            "test result: \x1b[32mok\x1b[0m. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered \
             out; finished in 0.00s\r\n",
            3,
            1,
        ),
        (
            "\x1b[32;1m     Summary\x1b[0m [   0.010s] \x1b[1m3\x1b[0m tests run: \x1b[1m3\x1b[0m \
             \x1b[32;1mpassed\x1b[0m, \x1b[1m1\x1b[0m \x1b[33;1mskipped\x1b[0m\r\n",
            3,
            1,
        ),
        (
            "\x1b[1mTests:       \x1b[22m\x1b[1m\x1b[32m3 passed\x1b[39m\x1b[22m, 3 total\r\n",
            3,
            0,
        ),
        (
            "\x1b[2m      Tests \x1b[22m \x1b[1m\x1b[32m3 passed\x1b[39m\x1b[22m\x1b[90m (3)\
             \x1b[39m\r\n",
            3,
            0,
        ),
        (
            "\x1b[92m \x1b[0m\x1b[32m 3 passing\x1b[0m\x1b[90m (12ms)\x1b[0m\r\n",
            3,
            0,
        ),
        (
            "\x1b[34mℹ tests 3\x1b[39m\r\n\x1b[34mℹ skipped 1\x1b[39m\r\n",
            2,
            1,
        ),
        ("  \x1b[32m3 tests passed\x1b[39m\r\n", 3, 0),
        (
            "\x1b[0;0m100% tests passed\x1b[0;0m, 0 tests failed out of 2\r\n",
            2,
            0,
        ),
    ];

    #[test]
    fn colours_and_ends_of_lines_hide_nothing() {
        for (text, ran, skipped) in ON_A_TERMINAL {
            assert_eq!(counted(text), (*ran, *skipped, true), "{text:?}");
        }
    }

    /// `go test` names packages and no tests.
    #[test]
    fn packages_of_go_are_no_tests() {
        for (text, wanted) in [
            ("ok  \texample.org/a\t0.012s\n", 1),
            (
                "ok  \ta\t0.012s\r\nok  \tb\t0.1s\r\n?   \tc\t[no test files]\r\n",
                2,
            ),
            ("?   \texample.org/b\t[no test files]\n", 0),
            ("ok  \texample.org/a\t0.01s [no tests to run]\n", 0),
            ("FAIL\texample.org/c\t1s\n", 1),
            ("ok  \ta\t(cached)\tcoverage: 80.0% of statements\n", 1),
            (
                "ok  \ta\t(cached)\tcoverage: [no statements] [no tests to run]\n",
                0,
            ),
        ] {
            assert_eq!(packages(text), (wanted, true), "{text}");
        }
        assert_eq!(packages("FAIL\ta [build failed]\n?\tb\tc\n"), (0, false));
    }

    #[test]
    fn that_there_was_nothing_is_said_by_the_tool() {
        for text in [
            "NO TESTS RAN\n",
            "No tests found, exiting with code 0\n",
            "\x1b[32mNo test files found, exiting with code 0\x1b[39m\r\n",
            "Files=0, Tests=0,  0 wallclock secs\nResult: NOTESTS\n",
            "No tests were found!!!\n",
            "  0 passing (1ms)\n",
            "# tests 0\n# suites 0\n# pass 0\n",
            "Summary [   0.000s] 0 tests run: 0 passed, 0 skipped\n",
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
            "py39: skipped because of x\n  py39: SKIP (1.30 seconds)\n  evaluation failed :(\n",
            "nox > Session tests-3.9 skipped: Python interpreter 3.9 not found.\n",
        ] {
            assert_eq!(counted(text), (0, 0, true), "{text}");
        }
    }

    /// Tools that fail for want of tests say so, and with which exit code is known.
    #[test]
    fn with_what_a_tool_fails_that_found_nothing_is_known() {
        for (text, wanted) in [
            ("===== no tests ran in 0.01s =====\n", Some(5)),
            (
                "collected 0 items\n\n\x1b[33mno tests ran\x1b[0m\x1b[33m in 0.01s\x1b[0m\n",
                Some(5),
            ),
            ("=== 2 deselected in 0.02s ===\n", Some(5)),
            ("Ran 0 tests in 0.000s\n\nNO TESTS RAN\n", Some(5)),
            ("No tests found, exiting with code 1\n", Some(1)),
            ("No tests found, exiting with code 0\n", None),
            ("No test files found, exiting with code 1\n", Some(1)),
            ("Error: No test files found: \"test\"\n", Some(1)),
            ("error: no tests to run\n", Some(4)),
            ("=== 1 error in 0.02s ===\n", None),
            ("=== 1 skipped in 0.02s ===\n", None),
            ("Ran 0 tests in 0.000s\n\nOK\n", None),
            ("it said: NO TESTS RAN\n", None),
        ] {
            let it = printed(text.as_bytes()).expect("memory");
            assert_eq!(it.none_exit, wanted, "{text}");
        }
        let it = printed(&b"make[1]: *** [Makefile:2: test] Error 5\n"[..]).expect("memory");
        assert_eq!(it.made_exit, Some(5));
        let earlier = "Error: No test files found\n--- step 2: npm run lint\n1 problem\n";
        let it = printed(earlier.as_bytes()).expect("memory");
        assert_eq!((it.none_exit, it.made_exit), (None, None));
        let own = "Error: No test files found\n--- step 2 ended with exit code 1\n";
        let it = printed(own.as_bytes()).expect("memory");
        assert_eq!(it.none_exit, Some(1));
    }

    #[test]
    fn the_last_lines_of_tools_are_counted() {
        for (text, ran, skipped) in ENDS {
            assert_eq!(counted(text), (*ran, *skipped, true), "{text}");
        }
    }

    #[test]
    fn what_tells_of_no_test_is_not_taken_for_one() {
        for text in [
            "",
            "  py313: OK (0.04 seconds)\n  congratulations :) (0.11 seconds)\n",
            "=== 2 tests collected in 0.06s ===\n",
            "improved 100% tests passed, 0 out of luck\n",
            "reading Files=3, Tests=0\n",
            "...\n",
            "compiled 3 files in 2.5s\n",
            "3 passengers\n",
            "test result: great\n",
            "Ran 3 migrations in 1s\n",
            "Tests are important\n",
            "ok\n",
            "3 warnings in 0.1s of work\n",
            "added 12 packages in 2s\n",
            "99999999999999999999 passed in 1s\n",
        ] {
            assert_eq!(counted(text), (0, 0, false), "{text}");
        }
    }

    #[test]
    fn hostile_output_costs_a_line() {
        let mut text = vec![b'x'; 4 << 20];
        text.extend(b" 3 passed in 1s\n\xff\xfe 3 passed in 1s\n\x1b[\x1b[");
        text.extend(b"\n3 passed in 1s\r4 passed in 1s");
        assert_eq!(printed(&text[..]).expect("memory").ran, 7);
        let many = "999999999 passed in 1s\n".repeat(20);
        assert_eq!(counted(&many).0, 20 * 999_999_999);
    }
}
