//! Reports as the tools themselves write them. What is read of each is kept beside it; after a
//! change that is meant, `DELTA_BLESS=1` records it anew.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use delta_results::{Case, Format};

use crate::cases;

fn corpus() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/real");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !name(path).ends_with(".read"))
        .collect();
    files.sort();
    files
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

fn format(path: &Path) -> Format {
    let parts: Vec<&str> = name(path).split('.').collect();
    Format::from_name(parts[1]).expect("a format in the file's name")
}

fn shown(case: &Case) -> String {
    let mut text = format!("{:5} {:?} {:?}", case.status.name(), case.suite, case.name);
    let line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    if let Some(message) = &case.message {
        write!(text, " message {:?}", line(message)).unwrap();
    }
    if let Some(trace) = &case.trace {
        write!(text, " trace of {} lines", trace.lines().count()).unwrap();
    }
    let timed = if case.duration_ms.is_some() {
        "timed"
    } else {
        "untimed"
    };
    write!(text, " {timed} {:?}", case.metadata).unwrap();
    text
}

#[test]
fn reports_of_real_tools_read_as_they_were_written() {
    let files = corpus();
    assert!(files.len() >= 12, "{files:?}");
    for file in files {
        let (found, report) = cases(format(&file), &std::fs::read(&file).unwrap());
        let mut text: String = found.iter().map(|case| shown(case) + "\n").collect();
        writeln!(text, "{:?}", report.totals).unwrap();
        writeln!(text, "{:?}", report.problem).unwrap();
        let expected = file.with_file_name(format!("{}.read", name(&file)));
        if std::env::var_os("DELTA_BLESS").is_some() {
            std::fs::write(&expected, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&expected).unwrap_or_default();
        assert_eq!(text, expected, "{}", name(&file));
        assert!(report.problem.is_none(), "{}", name(&file));
    }
}

/// What nextest itself said of the run: a test that passed at its second try has passed, and one
/// that was ignored is there.
#[test]
fn a_report_of_cargo_nextest_comes_to_what_it_printed() {
    let files = corpus();
    let file = files
        .iter()
        .find(|file| name(file) == "nextest.junit")
        .unwrap();
    let (found, report) = cases(format(file), &std::fs::read(file).unwrap());
    let seen = report.totals.seen;
    assert_eq!((seen.passed, seen.failed, seen.skipped), (3, 2, 1));
    assert!(!report.totals.is_contradicted(), "{:?}", report.totals);
    let flaky = found.iter().find(|it| it.name == "passes_at_last").unwrap();
    assert_eq!(
        (flaky.suite.as_str(), flaky.status.name()),
        ("sums::whole", "pass")
    );
    assert_eq!(flaky.metadata["earlier_failures"], "1");
}

/// Where nobody can know that there was more: behind a whole line of our own schema, and between
/// two packages of Go.
fn ends_at_a_seam(file: &Path, bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let last = text.trim_end().lines().last().unwrap_or_default();
    let whole = last.ends_with('}');
    let package = !last.contains("\"Test\"") && !last.contains("utput\"");
    match name(file) {
        "own.json" => whole,
        "go.json" => whole && (package || last.contains("shop/ok")),
        _ => false,
    }
}

// A68
#[test]
fn a_report_that_breaks_off_anywhere_keeps_what_came_before() {
    for file in corpus() {
        let (format, bytes) = (format(&file), std::fs::read(&file).unwrap());
        let (whole, _) = cases(format, &bytes);
        let mut most = 0;
        // Every place in a short one, and enough of them in a long one.
        for cut in (0..bytes.len()).rev().step_by(bytes.len() / 400 + 1) {
            let (found, report) = cases(format, &bytes[..cut]);
            // Lists of results are complete without the words after them.
            assert!(found.len() <= whole.len() + 1, "{} at {cut}", name(&file));
            assert!(report.totals.seen.total() == found.len() as u64);
            let lacks = found.len() < whole.len();
            if lacks && !ends_at_a_seam(&file, &bytes[..cut]) {
                assert!(report.problem.is_some(), "{} at {cut}", name(&file));
            }
            most = most.max(found.len());
        }
        assert!(
            most + 1 >= whole.len(),
            "{}: {most} of {}",
            name(&file),
            whole.len()
        );
    }
}
