//! How many tests ran, where the job says where that is told: in its reports or in what its steps
//! printed. None at all is a failure with a cause of its own; where it cannot be told, that is
//! said. The exit code is not asked: work that failed has failed already.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use delta_core::Cause;
use delta_results::Printed;
use delta_wire::agent::proto::RunSummary;
use delta_wire::job_spec::CountTests;

use super::{Around, Failed, Kept};

/// What a job says of which nobody knows how many tests it ran.
const NOT_COUNTED: &str = "tests not counted";

/// What counting came to.
#[derive(Debug, PartialEq, Eq)]
enum Counted {
    Ran(u64),
    /// None, and why.
    None(String),
    /// It cannot be told, for this reason where there is one.
    Unknown(Option<&'static str>),
}

/// Counts, and says what that came to.
pub(super) async fn tests(around: &Around<'_>, kept: &mut Kept) {
    let counted = match around.spec.count_tests {
        None => return,
        Some(CountTests::None) => Counted::Unknown(None),
        Some(CountTests::Report) => reported(kept.summary.map(|it| it.summary).as_ref()),
        Some(CountTests::Output) => {
            let path = around.log.path().to_owned();
            let read = tokio::task::spawn_blocking(move || read(&path)).await;
            printed(read.ok().flatten(), around.log.is_cut())
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
        Counted::Ran(1) => "1 test ran".to_owned(),
        Counted::Ran(many) => format!("{many} tests ran"),
        Counted::Unknown(None) => NOT_COUNTED.to_owned(),
        Counted::Unknown(Some(why)) => format!("{NOT_COUNTED}: {why}"),
    };
    around.log.mark(&words);
    kept.counted = Some(words);
}

fn read(path: &Path) -> Option<Printed> {
    let file = BufReader::new(File::open(path).ok()?);
    delta_results::printed(file).ok()
}

fn reported(summary: Option<&RunSummary>) -> Counted {
    let Some(it) = summary else {
        return Counted::None("no test ran: no report has a result".to_owned());
    };
    let ran = i64::from(it.passed) + i64::from(it.failed) + i64::from(it.errors);
    match u64::try_from(ran) {
        Ok(ran) if ran > 0 => Counted::Ran(ran),
        _ => Counted::None(format!("no test ran: {} skipped", were(it.skipped))),
    }
}

fn printed(printed: Option<Printed>, cut: bool) -> Counted {
    match printed {
        None => Counted::Unknown(Some("the log could not be read")),
        Some(it) if it.ran > 0 => Counted::Ran(it.ran),
        Some(_) if cut => Counted::Unknown(Some("the log is not whole")),
        Some(it) if it.skipped > 0 => {
            Counted::None(format!("no test ran: {} skipped", were(it.skipped)))
        }
        Some(it) if it.told => Counted::None("no test ran, as its tool says".to_owned()),
        Some(_) => {
            let words = "no test ran: nothing that its steps printed tells of one";
            Counted::None(words.to_owned())
        }
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
    }

    #[test]
    fn what_is_not_in_a_whole_log_was_not_printed() {
        let said = |ran, skipped, told| Some(Printed { ran, skipped, told });
        assert_eq!(printed(said(2, 0, true), true), Counted::Ran(2));
        let cut = Counted::Unknown(Some("the log is not whole"));
        assert_eq!(printed(said(0, 0, false), true), cut);
        for (ran, skipped, told) in [(0, 0, false), (0, 0, true), (0, 4, true)] {
            let judged = printed(said(ran, skipped, told), false);
            assert!(matches!(judged, Counted::None(_)), "{judged:?}");
        }
        assert_eq!(
            printed(None, false),
            Counted::Unknown(Some("the log could not be read"))
        );
    }
}
