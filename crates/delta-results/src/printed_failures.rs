//! Tests that failed, by what their tools print of them: libtest, unittest, pytest and `go test`.
//!
//! They are for people to read beside the end of work that failed. Nothing is concluded from them:
//! not that a test ran, and not that others passed. What is printed is the job's own, and hostile:
//! tests, lines and bytes have a bound, and a line that looks like a tool's is taken for one.

use std::collections::HashMap;
use std::io::{self, BufRead};

use crate::limits::shorten;
use crate::printed_lines::{self, LINE, step_begun, without_colours};
use crate::{Case, Status};

/// Tests that are named: more than anybody reads, and a small part of what a lease may send.
const MOST: usize = 1_000;

/// Lines of what a test said: an assertion with both of its sides and its place.
const LINES: usize = 8;

/// Bytes of it, as of a report's message.
const MESSAGE: usize = 4 << 10;

/// Signs in the line that unittest prints above a test that failed.
const FRAME: usize = 70;

/// The tests that failed in the steps, numbered from 1, that are asked for. The caller bounds how
/// much is read.
pub fn printed_failures(
    input: impl BufRead,
    of_step: &dyn Fn(u64) -> bool,
) -> io::Result<Vec<Case>> {
    let mut failures = Failures::default();
    let mut heard = |line: &[u8]| {
        let plain = without_colours(line);
        let mut text = String::from_utf8_lossy(&plain);
        // Its last character may be half of one.
        if line.len() >= LINE {
            text.to_mut().push('…');
        }
        let text = text.trim_end();
        match step_begun(text) {
            Some(step) => failures.begin_step(of_step(step)),
            None if failures.heard => failures.hear(text),
            None => {}
        }
    };
    printed_lines::each(input, &mut heard)?;
    failures.close();
    for case in &mut failures.cases {
        case.message = case.message.take().filter(|said| !said.is_empty());
    }
    Ok(failures.cases)
}

#[derive(Default)]
struct Failures {
    cases: Vec<Case>,
    /// Whether what this step prints is looked at.
    heard: bool,
    /// The test that is told of.
    open: Option<Told>,
    /// The line before was unittest's frame.
    framed: bool,
    /// pytest's list of what failed goes on.
    listed: bool,
    /// libtest runs: its cases by name, so that what tells of one is no search through all.
    libtest: Option<HashMap<String, usize>>,
    /// The first case of `go test` whose package is not known yet.
    go: usize,
}

/// What a tool goes on to say of one test.
struct Told {
    /// None where there are too many already.
    case: Option<usize>,
    /// Lines that it may still say.
    room: usize,
    stage: Stage,
}

enum Stage {
    /// libtest: before a panic.
    Said,
    /// libtest: what a panic said, and where it was.
    Panicked(String),
    /// libtest: what comes after it.
    Over(String),
    /// unittest: whether it is inside the traceback.
    Traceback(bool),
    /// pytest: a line of its list, and where they are not cut what is below it.
    Listed,
    /// `go test`: deeper than this.
    Below(usize),
}

impl Failures {
    fn begin_step(&mut self, heard: bool) {
        self.close();
        (self.framed, self.listed, self.libtest) = (false, false, None);
        (self.heard, self.go) = (heard, self.cases.len());
    }

    fn hear(&mut self, text: &str) {
        let framed = std::mem::replace(&mut self.framed, is_frame(text));
        // What a test of libtest printed may be another tool's.
        let others =
            |it: &mut Failures| it.unittest(text, framed) || it.pytest(text) || it.go(text);
        if !self.libtest(text) && (self.is_libtests() || !others(self)) {
            self.listen(text);
        }
    }

    /// Whether what a test of libtest printed is told.
    fn is_libtests(&self) -> bool {
        let stage = self.open.as_ref().map(|it| &it.stage);
        matches!(
            stage,
            Some(Stage::Said | Stage::Panicked(_) | Stage::Over(_))
        )
    }

    fn enter(&mut self, suite: &str, name: &str, status: Status) -> Option<usize> {
        (self.cases.len() < MOST).then(|| {
            self.cases.push(Case::new(suite, name, status));
            self.cases.len() - 1
        })
    }

    fn open(&mut self, case: Option<usize>, stage: Stage) -> bool {
        self.close();
        let room = LINES;
        self.open = Some(Told { case, room, stage });
        true
    }

    /// Where a test panicked stands below what it said, for which room was left.
    fn close(&mut self) {
        if let Some(Told { case, stage, .. }) = self.open.take()
            && let Stage::Panicked(place) | Stage::Over(place) = stage
            && !place.is_empty()
        {
            add(&mut self.cases, case, &mut 1, MESSAGE, &at(&place));
        }
    }

    /// `test a::b ... FAILED`, and `---- a::b stdout ----` above what it printed.
    fn libtest(&mut self, text: &str) -> bool {
        let begins = text.strip_prefix("running ").is_some_and(|rest| {
            let count = rest.strip_suffix(" tests").or(rest.strip_suffix(" test"));
            count.is_some_and(|count| count.parse::<u64>().is_ok())
        });
        let printed = self.is_libtests();
        if begins && !printed {
            self.libtest = Some(HashMap::new());
            return true;
        }
        if self.libtest.is_none() {
            return false;
        }
        if text.starts_with("test result: ") {
            self.close();
            self.libtest = None;
            return true;
        }
        if text == "failures:" {
            self.close();
            return true;
        }
        let header = text.strip_prefix("---- ");
        if let Some(name) = header.and_then(|rest| rest.strip_suffix(" stdout ----")) {
            let known = self.libtest.as_ref().and_then(|named| named.get(name));
            let known = known.copied();
            let case = known.or_else(|| self.enter_of_libtest(name));
            return self.open(case, Stage::Said);
        }
        let line = text.strip_prefix("test ").filter(|_| !printed);
        if let Some(name) = line.and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            let name = name.strip_suffix(" - should panic").unwrap_or(name);
            self.enter_of_libtest(name);
            return true;
        }
        false
    }

    fn enter_of_libtest(&mut self, name: &str) -> Option<usize> {
        let case = self.enter("", name, Status::Fail)?;
        let named = self.libtest.as_mut()?;
        Some(*named.entry(name.to_owned()).or_insert(case))
    }

    /// `FAIL: test_a (tests.test_app.T.test_a)` below a frame.
    fn unittest(&mut self, text: &str, framed: bool) -> bool {
        let told = matches!(
            self.open,
            Some(Told {
                stage: Stage::Traceback(_),
                ..
            })
        );
        if told && (is_frame(text) || text.starts_with("Ran ")) {
            self.close();
            return true;
        }
        let fail = text.strip_prefix("FAIL: ").map(|it| (it, Status::Fail));
        let error = text.strip_prefix("ERROR: ").map(|it| (it, Status::Error));
        let Some((rest, status)) = fail.or(error).filter(|_| framed) else {
            return false;
        };
        let (suite, name) = unittest_name(rest);
        let case = self.enter(suite, &name, status);
        self.open(case, Stage::Traceback(false))
    }

    /// `FAILED tests/test_a.py::test_x - assert 1 == 2` in the list at its end. With `CI` in the
    /// environment all lines of what was said are there, and with `-qq` nothing ends the list.
    fn pytest(&mut self, text: &str) -> bool {
        if text.trim_matches(['=', ' ']) == "short test summary info" && text.starts_with('=') {
            self.close();
            self.listed = true;
            return true;
        }
        if !self.listed {
            return false;
        }
        let failed = text.strip_prefix("FAILED ").map(|it| (it, Status::Fail));
        let error = text.strip_prefix("ERROR ").map(|it| (it, Status::Error));
        // `FAILED (failures=1)` is unittest's.
        if let Some((rest, status)) = failed.or(error).filter(|(rest, _)| !rest.starts_with('(')) {
            let (test, said) = rest.split_once(" - ").unwrap_or((rest, ""));
            let (suite, name) = test.split_once("::").unwrap_or(("", test));
            let case = self.enter(suite, name, status);
            self.open(case, Stage::Listed);
            self.replace(said);
            return true;
        }
        self.listed = !text.starts_with('=') && !is_count(text);
        false
    }

    /// `    --- FAIL: TestA/b (0.00s)`, and below all of a package `FAIL example.org/a 0.002s`.
    fn go(&mut self, text: &str) -> bool {
        let bare = text.trim_start();
        if let Some(rest) = bare.strip_prefix("--- FAIL: ")
            && let Some((name, took)) = rest.rsplit_once(" (")
            && took.ends_with("s)")
        {
            let case = self.enter("", name, Status::Fail);
            return self.open(case, Stage::Below(text.len() - bare.len()));
        }
        if let Some(package) = text.strip_prefix("FAIL\t") {
            self.close();
            let package = package.split('\t').next().unwrap_or_default();
            for case in &mut self.cases[self.go..] {
                package.clone_into(&mut case.suite);
            }
            self.go = self.cases.len();
            return true;
        }
        if text.starts_with("ok  \t") {
            self.go = self.cases.len();
        }
        false
    }

    /// What the tool goes on to say of the test that it told of.
    fn listen(&mut self, text: &str) {
        let Some(Told { case, room, stage }) = &mut self.open else {
            return;
        };
        let panicked = panic_of(text);
        match stage {
            Stage::Said => match panicked {
                Some(("", message)) => {
                    *stage = Stage::Over(String::new());
                    self.replace(message);
                }
                Some((place, _)) => {
                    *stage = Stage::Panicked(place.to_owned());
                    self.replace("");
                }
                None if text.is_empty() => {}
                // What it returned, or that it did not panic, comes last.
                None => self.replace(text),
            },
            Stage::Panicked(place) => {
                let over = text.starts_with("note: ") || text.starts_with("stack backtrace:");
                // Its place has the last line.
                if over || panicked.is_some() || *room <= 1 {
                    *stage = Stage::Over(std::mem::take(place));
                } else {
                    let most = MESSAGE.saturating_sub(at(place).len() + 1);
                    add(&mut self.cases, *case, room, most, text);
                }
            }
            Stage::Over(_) => {}
            Stage::Traceback(inside) => {
                if text.starts_with("Traceback (most recent call last):") {
                    *inside = true;
                } else if *inside && text.starts_with(|first: char| !first.is_whitespace()) {
                    *inside = false;
                    self.replace(text);
                }
            }
            Stage::Listed => match text.is_empty() || text.starts_with(char::is_whitespace) {
                true => add(&mut self.cases, *case, room, MESSAGE, text),
                false => self.open = None,
            },
            Stage::Below(indent) => {
                let bare = text.trim_start();
                match text.len() - bare.len() > *indent && !bare.starts_with("--- ") {
                    true => add(&mut self.cases, *case, room, MESSAGE, bare),
                    false => self.open = None,
                }
            }
        }
    }

    /// What is said instead of all that was said before.
    fn replace(&mut self, text: &str) {
        let Some(Told { case, room, .. }) = &mut self.open else {
            return;
        };
        if let Some(case) = case.and_then(|at| self.cases.get_mut(at)) {
            case.message = None;
        }
        *room = LINES;
        add(&mut self.cases, *case, room, MESSAGE, text);
    }
}

fn is_frame(text: &str) -> bool {
    text.len() >= FRAME && text.bytes().all(|byte| byte == b'=')
}

/// Suite and name: older ones do not say the name again in brackets, and of a subtest its values
/// stand behind them.
fn unittest_name(text: &str) -> (&str, String) {
    let parts = text.split_once(" (");
    let parts = parts.and_then(|(name, rest)| Some((name, rest.split_once(')')?)));
    let Some((name, (path, values))) = parts else {
        return ("", text.to_owned());
    };
    let suite = path.strip_suffix(name).and_then(|it| it.strip_suffix('.'));
    (suite.unwrap_or(path), format!("{name}{values}"))
}

/// `thread 'a' panicked at src/a.rs:3:5:`: where that was, or, before 1.73, what it said.
fn panic_of(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("thread '")?;
    let (_, said) = rest.split_once(" panicked at ")?;
    Some(match said.strip_prefix('\'') {
        Some(_) => ("", said),
        None => (said.trim_end_matches(':'), ""),
    })
}

fn at(place: &str) -> String {
    format!("at {place}")
}

/// The end of pytest's list with `-q`: `1 failed, 2 passed in 0.12s`.
fn is_count(text: &str) -> bool {
    let begins_with_digit = |it: &str| it.starts_with(|first: char| first.is_ascii_digit());
    text.split_once(" in ").is_some_and(|(counts, took)| {
        let took = took.split(' ').next().unwrap_or_default();
        let counted = begins_with_digit(counts) || counts == "no tests ran";
        counted && begins_with_digit(took) && took.ends_with('s')
    })
}

/// One line more of what a test said, where there is room for it and until there are so many bytes.
fn add(cases: &mut [Case], case: Option<usize>, room: &mut usize, most: usize, text: &str) {
    let Some(case) = case.and_then(|at| cases.get_mut(at)) else {
        return;
    };
    let said = case.message.get_or_insert_default();
    if text.is_empty() || *room == 0 || said.len() >= most {
        return;
    }
    *room -= 1;
    if !said.is_empty() {
        said.push('\n');
    }
    said.push_str(text);
    shorten(said, most);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_in(text: &str, step: u64) -> Vec<String> {
        let cases = printed_failures(text.as_bytes(), &|it| it == step).expect("memory");
        let one = |it: &Case| {
            let said = it.message.as_deref().unwrap_or_default();
            let suite = &it.suite;
            format!(
                "{} {suite}|{}|{}",
                it.status.name(),
                it.name,
                said.replace('\n', "/")
            )
        };
        cases.iter().map(one).collect()
    }

    fn failed(text: &str) -> Vec<String> {
        failed_in(&format!("--- step 1: test\n{text}"), 1)
    }

    const LIBTEST: &str = "
running 6 tests
test tests::bad ... FAILED
test tests::eq ... \x1b[31mFAILED\x1b[0m
test tests::good ... ok
test tests::res ... FAILED
test tests::sp - should panic ... FAILED
test tests::mute ... FAILED

failures:

---- tests::bad stdout ----

thread 'tests::bad' (15116) panicked at src/lib.rs:2:20:
boo
stack backtrace:
   0: std::panicking::begin_panic::<&str>
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.

---- tests::eq stdout ----
test of::another ... FAILED
--- FAIL: TestOfAnother (0.00s)
thread 'tests::eq' panicked at src/lib.rs:4:38:
assertion `left == right` failed: sums
  left: 1
 right: 2
thread 'other' panicked at src/lib.rs:9:1:
too late

---- tests::res stdout ----
Error: \"no luck\"

---- tests::sp stdout ----
note: test did not panic as expected at src/lib.rs:6:29

failures:
    tests::bad

test result: FAILED. 1 passed; 5 failed; 0 ignored; 0 measured; 0 filtered out

running 1 test
F
failures:

---- tests::bad stdout ----
thread 'tests::bad' panicked at 'old', src/main.rs:1:1
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
error: test failed, to rerun pass `--lib`
";

    #[test]
    fn a_panic_is_what_the_test_said_and_its_backtrace_is_not() {
        assert_eq!(
            failed(LIBTEST),
            [
                "fail |tests::bad|boo/at src/lib.rs:2:20",
                "fail |tests::eq|assertion `left == right` failed: sums/  left: 1/ right: 2\
                 /at src/lib.rs:4:38",
                "fail |tests::res|Error: \"no luck\"",
                "fail |tests::sp|note: test did not panic as expected at src/lib.rs:6:29",
                "fail |tests::mute|",
                "fail |tests::bad|'old', src/main.rs:1:1",
            ]
        );
    }

    const UNITTEST: &str = "\
FE.F
======================================================================
ERROR: test_b (test_a.T.test_b)
Says what it is for.
----------------------------------------------------------------------
Traceback (most recent call last):
  File \"/tmp/test_a.py\", line 5, in test_b
    try: {}['x']
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File \"/tmp/test_a.py\", line 6, in test_b
ValueError: no

======================================================================
FAIL: test_a (test_a.T)
----------------------------------------------------------------------
Traceback (most recent call last):
  File \"/tmp/test_a.py\", line 3, in test_a
AssertionError: Lists differ: [1] != [2]

First differing element 0:
======================================================================
FAIL: test_s (test_a.T.test_s) (i=0)
----------------------------------------------------------------------
Traceback (most recent call last):
  File \"/tmp/test_a.py\", line 9, in test_s
AssertionError: 0 != 5

----------------------------------------------------------------------
Ran 4 tests in 0.001s

FAILED (failures=2, errors=1)
FAIL: test_late (test_a.T)
";

    #[test]
    fn the_end_of_a_traceback_is_what_the_test_said() {
        assert_eq!(
            failed(UNITTEST),
            [
                "error test_a.T|test_b|ValueError: no",
                "fail test_a.T|test_a|AssertionError: Lists differ: [1] != [2]",
                "fail test_a.T|test_s (i=0)|AssertionError: 0 != 5",
            ]
        );
    }

    #[test]
    fn pytest_lists_what_failed_at_its_end() {
        let text = "FAILED a.py::early - no list yet\n\
            =========== short test summary info ============\n\
            SKIPPED [1] tests/test_a.py:3: no database\n\
            FAILED tests/test_a.py::TestA::test_x[1] - assert 1 == 2\n\
            ERROR tests/test_b.py - ModuleNotFoundError: No module named 'x'\n\
            ========= 1 failed, 1 error in 0.12s ==========\n\
            FAILED a.py::late - the list is over\n";
        assert_eq!(
            failed(text),
            [
                "fail tests/test_a.py|TestA::test_x[1]|assert 1 == 2",
                "error |tests/test_b.py|ModuleNotFoundError: No module named 'x'",
            ]
        );
    }

    /// As with `CI` in its environment.
    #[test]
    fn pytest_lists_all_that_failed_however_many_lines_they_say() {
        let text = "=========== short test summary info ============\n\
            FAILED test_a.py::test_where - assert 1 == 2\n\
            \x20+  where 1 = f()\n\
            FAILED test_a.py::test_text - AssertionError: assert 'a' == 'b'\n\
            \x20 \n\
            \x20 - b\n\
            \x20 + a\n\
            SUBFAILED[of it] test_a.py::test_sub - assert 0\n\
            \x20+  where nobody = is()\n\
            FAILED test_a.py::test_raw - ValueError: one\n\
            two\n\
            \x20 three\n\
            ERROR test_b.py - ImportError: no\n";
        let all = [
            "fail test_a.py|test_where|assert 1 == 2/ +  where 1 = f()",
            "fail test_a.py|test_text|AssertionError: assert 'a' == 'b'/  - b/  + a",
            "fail test_a.py|test_raw|ValueError: one",
            "error |test_b.py|ImportError: no",
        ];
        for end in [
            "=== 3 failed, 1 error in 0.12s ===",
            "3 failed, 1 error in 0.12s",
            "3 failed, 1 error in 62.12s (0:01:02)",
            "=================",
        ] {
            let text = format!("{text}{end}\nFAILED a.py::late - the list is over\n");
            assert_eq!(failed(&text), all, "{end}");
        }
        let quiet = format!("{text}make: *** [test] Error 1\nFAILED (failures=1)\n");
        assert_eq!(failed(&quiet), all, "with -qq");
    }

    #[test]
    fn where_a_long_panic_was_is_told() {
        let of = |said: &str| {
            let text = format!(
                "running 1 test\n---- a stdout ----\nthread 'a' panicked at src/a.rs:1:2:\n\
                 {said}note: run with\n\ntest result: FAILED. 0 passed; 1 failed\n"
            );
            let text = format!("--- step 1: test\n{text}");
            let cases = printed_failures(text.as_bytes(), &|_| true).expect("memory");
            cases[0].message.clone().expect("it said something")
        };
        let lines: String = (1..20).map(|n| format!("{n}\n")).collect();
        let few = "1\n2\n3\n4\n5\n6\n7\nat src/a.rs:1:2";
        assert_eq!(of(&lines), few);
        let wide = of(&format!("{}\n", "x".repeat(LINE - 10)).repeat(9));
        assert!(wide.ends_with("xx\nat src/a.rs:1:2"), "{wide}");
        assert_eq!(wide.len(), MESSAGE);
    }

    #[test]
    fn tests_of_go_are_those_of_their_package() {
        let text = "--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/sub (0.00s)\n        \
            a_test.go:6: boo\n    --- PASS: TestA/other (0.00s)\n        a_test.go:9: fine\n\
            FAIL\nFAIL\texample.org/a\t0.002s\nok  \texample.org/b\t0.001s\n\
            --- FAIL: TestB (0.00s)\n    b_test.go:3: 1\n        2\nFAIL\texample.org/c\t0.1s\n";
        assert_eq!(
            failed(text),
            [
                "fail example.org/a|TestA|",
                "fail example.org/a|TestA/sub|a_test.go:6: boo",
                "fail example.org/c|TestB|b_test.go:3: 1/2",
            ]
        );
    }

    /// What another step printed is not why this one failed.
    #[test]
    fn only_steps_that_are_asked_for_are_heard() {
        let text = format!("--- step 1: a\n{LIBTEST}--- step 2: b\n{UNITTEST}");
        assert_eq!(failed_in(&text, 1).len(), 6);
        assert_eq!(failed_in(&text, 2).len(), 3);
        assert_eq!(failed_in(&text, 3), [""; 0]);
        assert_eq!(failed_in(LIBTEST, 1), [""; 0], "before any step");
    }

    #[test]
    fn what_only_looks_like_a_tool_names_nothing() {
        for text in [
            "test of strength ... FAILED\n",
            "---- a stdout ----\nthread 'a' panicked at b:\nboo\n",
            "FAIL: no frame above\n",
            "FAILED (failures=1)\n",
            "FAILED path::name - no list\n",
            "--- FAIL: something else\n",
        ] {
            assert_eq!(failed(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn hostile_output_costs_a_bound() {
        let name = "n".repeat(500);
        let line = "x".repeat(LINE * 3);
        let mut text = "running 9 tests\n".to_owned();
        for n in 0..MOST + 5 {
            text.push_str(&format!(
                "---- {name}{n} stdout ----\nthread 'a' panicked at b:\n"
            ));
            (0..LINES * 2).for_each(|_| text.push_str(&format!("{line}\n\u{fffd}\n")));
        }
        let text = format!("--- step 1: a\n{text}");
        let mut bytes = text.into_bytes();
        bytes.extend(b"\xff\xfe\x1b[\x1b[");
        let cases = printed_failures(&bytes[..], &|_| true).expect("memory");
        assert_eq!(cases.len(), MOST);
        assert!(cases.iter().all(|it| {
            let said = it.message.as_deref().unwrap_or_default();
            said.len() <= MESSAGE && said.lines().count() <= LINES && said.contains('…')
        }));
    }
}
