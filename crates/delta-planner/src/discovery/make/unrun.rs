//! Targets of a makefile that check something, by their names, and that no job makes: named, so
//! that nobody takes a plan for all that the makefile has.

use std::collections::BTreeSet;

use super::super::checks::{is_check, listed};
use super::super::shell::calls;
use super::TARGETS;
use super::recipes::Makefile;

/// Targets of one makefile that are looked at; generated ones have thousands.
const MAX_TARGETS: usize = 1_000;

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
fn made<'m>(makefile: &'m Makefile<'_>) -> BTreeSet<&'m str> {
    let mut made = BTreeSet::new();
    let mut open: Vec<&str> = TARGETS
        .into_iter()
        .filter(|target| makefile.has(target))
        .collect();
    while let Some(target) = open.pop() {
        let new = makefile.made_for(target).into_iter();
        let new: Vec<&str> = new.filter(|target| made.insert(*target)).collect();
        if new.is_empty() || made.len() > MAX_TARGETS {
            continue;
        }
        for call in makefile
            .commands(target)
            .iter()
            .flat_map(|command| calls(command))
        {
            let at = call.words.iter().position(|word| word.ends_with("make"));
            let named = call.words[at.map_or(call.words.len(), |at| at + 1)..].iter();
            let named = named.filter_map(|word| makefile.targets().find(|target| target == word));
            open.extend(named.filter(|target| !made.contains(target)));
        }
    }
    made
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
}
