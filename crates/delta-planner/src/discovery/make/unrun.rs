//! Targets of a makefile that check something, by their names, and that no job makes: named, so
//! that nobody takes a plan for all that the makefile has.

use std::collections::BTreeSet;

use super::super::checks::{is_check, listed};
use super::super::shell::calls;
use super::TARGETS;
use super::recipes::Makefile;
use crate::tree::file_name;

/// Targets of one makefile that are looked at; generated ones have thousands.
const MAX_TARGETS: usize = 1_000;

/// Bytes of commands that are looked at, with what stands for variables: no makefile that is read
/// has more of its own.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// What is said of such targets, if there are any.
pub fn words(makefile: &Makefile<'_>) -> Option<String> {
    let made = made(makefile);
    // A name with a dot or a folder is a file's.
    let plain = |name: &&str| !name.contains(['.', '/', '%', '$', '*', '(']);
    let targets = makefile.targets().take(MAX_TARGETS).filter(plain);
    let unrun =
        targets.filter(|target| (is_check(target) || *target == "ci") && !made.contains(target));
    let (names, several) = listed(&unrun.collect::<Vec<_>>())?;
    let (targets, are) = if several {
        ("targets", "are")
    } else {
        ("target", "is")
    };
    let why = "lint, build, test and check, and what these need, are";
    Some(format!("its {targets} {names} {are} not run: {why}"))
}

/// What making the targets makes that jobs are for, also where a recipe calls make.
fn made<'m>(makefile: &Makefile<'m>) -> BTreeSet<&'m str> {
    let (mut made, mut passed) = (BTreeSet::new(), BTreeSet::new());
    let mut bytes = 0;
    let targets = TARGETS.into_iter();
    let mut open: Vec<&str> = targets.filter_map(|it| makefile.target(it)).collect();
    while let Some(target) = open.pop() {
        if !made.insert(target) {
            continue;
        }
        let (needed, commands) = makefile.pass(target, &mut passed);
        open.extend(needed);
        for command in &commands {
            bytes += command.len();
            if bytes > MAX_BYTES {
                break;
            }
            for call in calls(command) {
                let at = call.words.iter().position(|word| is_make(word));
                let named = call.words[at.map_or(call.words.len(), |at| at + 1)..].iter();
                open.extend(named.filter_map(|word| makefile.target(word)));
            }
        }
    }
    made
}

/// Whether a program is make, wherever it is; `cmake` is another.
fn is_make(program: &str) -> bool {
    matches!(file_name(program), "make" | "gmake")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        words(&Makefile::read(text)).unwrap_or_default()
    }

    #[test]
    fn targets_that_check_and_are_not_made_are_named() {
        let text = "all: app\ntests: x\ntest-unit:\nverify ci:\ncheck-format:\nlint-go:\n\
                    test.o: test.c\nobj/test:\nlatest:\nlint-fix:\nrelease:\n";
        let why = "lint, build, test and check, and what these need, are";
        let names = "check-format, ci, lint-go, test-unit, tests, verify";
        assert_eq!(
            said(text),
            format!("its targets {names} are not run: {why}")
        );
        assert_eq!(
            said("test:\nci: test\n"),
            format!("its target ci is not run: {why}")
        );
    }

    #[test]
    fn targets_that_a_job_makes_are_not() {
        for text in [
            "test: test-unit\ntest-unit:\n",
            "check:\n\t$(MAKE) --no-print-directory lint-go verify\nlint-go verify: x\n",
            "test:\n\tmake tests\ntests:\n\t+make test-unit\ntest-unit:\n",
            "lint:\nall:\n",
        ] {
            assert_eq!(said(text), "", "{text}");
        }
    }

    #[test]
    fn only_make_makes_targets() {
        let why = "is not run: lint, build, test and check, and what these need, are";
        for (program, wanted) in [
            ("make", String::new()),
            ("/usr/bin/gmake -j2", String::new()),
            ("cmake --target", format!("its target lint-go {why}")),
            ("automake", format!("its target lint-go {why}")),
        ] {
            let text = format!("build:\n\t{program} lint-go\nlint-go:\n");
            assert_eq!(said(&text), wanted, "{program}");
        }
    }

    /// Each of these took a step for each pair of a word and a target, or of a target and what it
    /// needs.
    #[test]
    fn hostile_recipes_are_read_in_time() {
        let names = |count: usize| (0..count).map(|n| format!("t{n} ")).collect::<String>();
        let words = format!(
            "{}:\ntest:\n\tmake {}\n",
            names(60_000),
            "t ".repeat(200_000)
        );
        let rings: String = (0..900)
            .map(|n| format!("r{n}: z\n\tmake r{}\n", n + 1))
            .collect();
        let needs = format!(
            "test: r0\nz: {}\n\t{}\n{rings}",
            names(40_000),
            "x ".repeat(90_000)
        );
        let open = format!("test:\n\t{}\n", "$(".repeat(400_000));
        let joined = format!("test:\n\t{}", "a \\\n".repeat(100_000));
        for text in [words, needs, open, joined] {
            let start = std::time::Instant::now();
            assert_eq!(said(&text), "");
            let took = start.elapsed();
            assert!(took.as_secs() < 10, "took {took:?}: {}", &text[..40]);
        }
    }
}
