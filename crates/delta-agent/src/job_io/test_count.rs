//! How many tests ran, where the job says where that is told: in its reports or in what its steps
//! printed. None at all is a failure with a cause of its own, if a report or a tool says so: output
//! in which no line is known has not said it. Where it cannot be told, that is said.
//!
//! Work that failed has failed already, and only why is asked: where the tool itself says that it
//! found no test, and the exit code is the one with which it then fails, that is the cause.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use delta_core::Cause;
use delta_results::Printed;
use delta_shim::order::StepRecord;
use delta_wire::agent::proto::RunSummary;
use delta_wire::job_spec::CountTests;

use super::{Around, Failed, Kept};

/// What a job says of which nobody knows how many tests it ran.
const NOT_COUNTED: &str = "tests not counted";

/// What counting came to.
#[derive(Debug, PartialEq, Eq)]
enum Counted {
    Ran(u64),
    /// Packages in which tests ran, and tests of tools that name those.
    Packages(u64, u64),
    /// None, and why.
    None(String),
    /// It cannot be told, for this reason where there is one.
    Unknown(Option<&'static str>),
}

/// Counts, and says what that came to.
pub(super) async fn tests(around: &Around<'_>, kept: &mut Kept) {
    let failing = failed_last(around.records);
    // Tests may have run in what is missing of a log.
    let whole = !around.log.is_cut();
    let counted = match around.spec.count_tests {
        None => return,
        Some(CountTests::None) => Counted::Unknown(None),
        Some(CountTests::Report) => {
            let summary = kept.summary.and_then(|it| it.summary);
            if let (None, Some(code)) = (&summary, failing) {
                let said = read_log(around).await;
                kept.found_none = whole && said.is_some_and(|it| ended_for_none(&it, code));
            }
            reported(summary.as_ref())
        }
        Some(CountTests::Output) => {
            let read = read_log(around).await;
            if let (Some(said), Some(code)) = (&read, failing) {
                kept.found_none = whole && ended_for_none(said, code);
            }
            printed(read, !whole)
        }
    };
    let words = match counted {
        Counted::None(summary) => {
            kept.failed.get_or_insert(Failed {
                cause: Cause::NoTests,
                summary,
            });
            return;
        }
        Counted::Ran(tests) => ran(tests),
        Counted::Packages(packages, 0) => tested(packages),
        Counted::Packages(packages, tests) => format!("{}, {}", ran(tests), tested(packages)),
        Counted::Unknown(None) => NOT_COUNTED.to_owned(),
        Counted::Unknown(Some(why)) => format!("{NOT_COUNTED}: {why}"),
    };
    // What results came to has been said in the log.
    if kept.summary.and_then(|it| it.summary).is_none() {
        around.log.mark(&words);
    }
    kept.remarks.push(words);
}

/// `1 test`, `2 tests`.
pub(super) fn in_words(tests: impl Into<i128>) -> String {
    match tests.into() {
        1 => "1 test".to_owned(),
        many => format!("{many} tests"),
    }
}

/// What is said of work that failed as its tool found no test.
pub(crate) const FOUND_NONE: &str = "no test ran, as its tool says";

/// With what make ends when a recipe failed, whatever that ended with.
const MAKE_FAILED: i32 = 2;

/// The exit code of the step by which work failed, where no other one did.
fn failed_last(records: &[StepRecord]) -> Option<i32> {
    let mut unhappy = records.iter().filter(|it| it.exit_code != Some(0));
    let failed = unhappy.next()?.exit_code;
    failed.filter(|_| unhappy.next().is_none())
}

/// Whether a tool said that it found no test, and the step ended as that tool then does.
fn ended_for_none(said: &Printed, code: i32) -> bool {
    let ended = match (code, said.made_exit) {
        (MAKE_FAILED, Some(made)) => made,
        (code, _) => code,
    };
    let none = said.ran == 0 && said.packages == 0 && said.skipped == 0;
    none && said.none_exit == Some(ended)
}

async fn read_log(around: &Around<'_>) -> Option<Printed> {
    let path = around.log.path().to_owned();
    let read = tokio::task::spawn_blocking(move || read(&path)).await;
    read.ok().flatten()
}

fn read(path: &Path) -> Option<Printed> {
    let file = BufReader::new(File::open(path).ok()?);
    delta_results::printed(file).ok()
}

fn reported(summary: Option<&RunSummary>) -> Counted {
    let Some(it) = summary else {
        return Counted::None("no test ran: no report has a result".to_owned());
    };
    // An error is a test that could not be carried out, or a report that could not be read: empty,
    // cut off, of a package that did not compile. None of them is a test that ran.
    let ran = i64::from(it.passed) + i64::from(it.failed);
    match (u64::try_from(ran), it.errors) {
        (Ok(ran @ 1..), _) => Counted::Ran(ran),
        (_, 0) => Counted::None(format!("no test ran: {} skipped", were(it.skipped))),
        (_, errors) => Counted::None(format!("no test ran: {errors} could not be carried out")),
    }
}

fn printed(printed: Option<Printed>, cut: bool) -> Counted {
    match printed {
        None => Counted::Unknown(Some("the log could not be read")),
        Some(it) if it.packages > 0 => Counted::Packages(it.packages, it.ran),
        Some(it) if it.ran > 0 => Counted::Ran(it.ran),
        Some(_) if cut => Counted::Unknown(Some("the log is not whole")),
        Some(it) if it.skipped > 0 => {
            Counted::None(format!("no test ran: {} skipped", were(it.skipped)))
        }
        Some(it) if it.told => Counted::None("no test ran, as its tool says".to_owned()),
        Some(_) => Counted::Unknown(Some("nothing that was printed tells how many ran")),
    }
}

fn ran(tests: u64) -> String {
    format!("{} ran", in_words(tests))
}

fn tested(packages: u64) -> String {
    match packages {
        1 => "1 package tested".to_owned(),
        many => format!("{many} packages tested"),
    }
}

fn were(count: impl Into<i128>) -> String {
    match count.into() {
        1 => "1 was".to_owned(),
        many => format!("{many} were"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_did_not_run() {
        let none = |words: &str| Counted::None(words.to_owned());
        let of = |passed, failed, skipped| {
            reported(Some(&RunSummary {
                passed,
                failed,
                skipped,
                ..RunSummary::default()
            }))
        };
        assert_eq!(of(2, 1, 3), Counted::Ran(3));
        assert_eq!(of(0, 0, 1), none("no test ran: 1 was skipped"));
        assert_eq!(reported(None), none("no test ran: no report has a result"));
        let unread = RunSummary {
            errors: 1,
            ..RunSummary::default()
        };
        let words = "no test ran: 1 could not be carried out";
        assert_eq!(reported(Some(&unread)), none(words));
    }

    fn said(ran: u64, skipped: u64, told: bool) -> Option<Printed> {
        Some(Printed {
            ran,
            skipped,
            told,
            ..Printed::default()
        })
    }

    /// Only with its own exit code: another failure stays what it is.
    #[test]
    fn a_tool_that_found_none_fails_with_its_own_code() {
        let none = |none_exit, made_exit, ran| Printed {
            ran,
            none_exit,
            made_exit,
            ..Printed::default()
        };
        for (said, code, wanted) in [
            (none(Some(5), None, 0), 5, true),
            (none(Some(5), None, 0), 4, false),
            (none(Some(5), None, 3), 5, false),
            (none(None, None, 0), 5, false),
            (none(Some(5), Some(5), 0), 2, true),
            (none(Some(5), Some(1), 0), 2, false),
            (none(Some(5), None, 0), 2, false),
        ] {
            assert_eq!(ended_for_none(&said, code), wanted, "{said:?} {code}");
        }
    }

    #[test]
    fn none_ran_where_a_tool_says_so_and_nowhere_else() {
        assert_eq!(printed(said(2, 0, true), true), Counted::Ran(2));
        let cut = Counted::Unknown(Some("the log is not whole"));
        assert_eq!(printed(said(0, 0, false), true), cut);
        assert_eq!(printed(said(0, 0, true), true), cut);
        for (ran, skipped, told) in [(0, 0, true), (0, 4, true)] {
            let judged = printed(said(ran, skipped, told), false);
            assert!(matches!(judged, Counted::None(_)), "{judged:?}");
        }
        let judged = printed(said(0, 0, false), false);
        assert!(matches!(judged, Counted::Unknown(Some(_))), "{judged:?}");
        assert_eq!(
            printed(None, false),
            Counted::Unknown(Some("the log could not be read"))
        );
    }

    #[test]
    fn packages_are_told_from_tests() {
        let of = |packages, ran| {
            let it = said(ran, 0, true).map(|it| Printed { packages, ..it });
            printed(it, false)
        };
        assert_eq!(of(2, 0), Counted::Packages(2, 0));
        assert_eq!(of(2, 5), Counted::Packages(2, 5));
        assert_eq!(tested(1), "1 package tested");
        assert_eq!(ran(1), "1 test ran");
    }
}
