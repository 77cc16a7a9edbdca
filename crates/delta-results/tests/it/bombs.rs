//! Reports that cost far more to hold than they have bytes (T11, T12): what is repeated in them is
//! counted while it is read.

use std::io::{BufReader, Read};

use delta_results::{Format, Limits, Problem, read};

/// What reading one of them may add to this process. A whole agent has 256 MiB.
const MOST: usize = 160 << 20;

/// A beginning and then the same thing again and again; nothing of it lies in memory.
struct Endless {
    begin: Vec<u8>,
    again: Vec<u8>,
    at: usize,
}

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        for byte in &mut *into {
            *byte = match self.at.checked_sub(self.begin.len()) {
                None => self.begin[self.at],
                Some(beyond) => self.again[beyond % self.again.len()],
            };
            self.at += 1;
        }
        Ok(into.len())
    }
}

/// The most memory that this process ever had.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = most
        .and_then(|most| most.trim().strip_suffix(" kB"))
        .and_then(|it| it.parse::<usize>().ok());
    kilobytes.expect("a number") * 1024
}

/// The kernel counts in lots per thread, so that what it says may also become a little less.
fn grown_since(before: usize) -> usize {
    peak().saturating_sub(before)
}

fn holds(format: Format, begin: &str, again: &str) -> Option<Problem> {
    holds_within(MOST, format, begin, again)
}

fn holds_within(most: usize, format: Format, begin: &str, again: &str) -> Option<Problem> {
    let before = peak();
    let endless = Endless {
        begin: begin.into(),
        again: again.into(),
        at: 0,
    };
    let input = BufReader::with_capacity(64 << 10, endless);
    let report = read(format, input, "", &Limits::default(), &mut drop);
    let grown = grown_since(before);
    assert!(
        grown < most,
        "{format:?} {begin}{again}: {} MiB",
        grown >> 20
    );
    report.problem
}

#[test]
fn a_file_of_jest_with_millions_of_tests_is_refused_as_it_is_read() {
    let begin = "{\"testResults\":[{\"assertionResults\":[";
    let problem = holds(Format::Jest, begin, "{},");
    assert!(matches!(problem, Some(Problem::TooMany(_))), "{problem:?}");
}

#[test]
fn long_lists_inside_a_test_of_jest_cost_their_bytes() {
    let begin = "{\"testResults\":[{\"assertionResults\":[";
    let one = format!("{begin}{{\"retryReasons\":[\"\"");
    holds(Format::Jest, &one, ",\"\"");
    let many = "\"\",".repeat(200) + "\"\"";
    for list in ["ancestorTitles", "failureMessages"] {
        holds(Format::Jest, begin, &format!("{{\"{list}\":[{many}]}},"));
    }
}

#[test]
fn a_suite_of_playwright_is_counted_whatever_there_are_many_of() {
    let suite = "{\"suites\":[{\"title\":\"a\",";
    let test = "\"specs\":[{\"tests\":[";
    let tests = format!("{suite}{test}");
    let result = format!("{tests}{{\"results\":[");
    let bombs = [
        (format!("{suite}\"suites\":["), "{},"),
        (format!("{suite}\"suites\":["), "{\"suites\":[{}]},"),
        (format!("{suite}\"specs\":["), "{},"),
        (
            format!("{suite}\"specs\":["),
            "{\"tests\":[{\"results\":[{}]}]},",
        ),
        (tests, "{},"),
        (result.clone(), "{},"),
        (format!("{result}{{\"errors\":["), "{},"),
        (format!("{suite}\"unknown\":["), "{},"),
        (format!("{suite}\"unknown\":{{\"\":0"), ",\"\":0"),
    ];
    for (begin, again) in bombs {
        let problem = holds(Format::Playwright, &begin, again);
        assert!(problem.is_some(), "{begin}{again}");
    }
}

#[test]
fn metadata_and_numbers_beyond_their_bound_are_not_held() {
    // Names that differ, as many as fit into a report.
    let entries = |value: &str| -> String {
        let entries = (0..2_500_000).map(|n| format!("\"{n:x}\":{value},"));
        entries.collect()
    };
    let metadata = format!(
        "{{\"tests\":[{{\"name\":\"a\",\"status\":\"pass\",\"metadata\":{{{}\"z\":\"\"}}}}]}}",
        entries("\"\"")
    );
    let numbers = format!("{{{}\"z\":1}}", entries("1"));
    let whole = [(Format::Json, metadata), (Format::Jest, numbers)];
    for (format, text) in whole {
        let before = peak();
        let report = read(format, text.as_bytes(), "", &Limits::default(), &mut drop);
        assert!(report.problem.is_none(), "{:?}", report.problem);
        let grown = grown_since(before);
        assert!(grown < 64 << 20, "{format:?}: {} MiB", grown >> 20);
    }
}

#[test]
fn an_element_with_millions_of_attributes_is_refused() {
    let begin = "<testsuite><testcase name=\"a\"";
    let attributes: String = (0..5_000_000).map(|_| " a=\"\"").collect();
    let text = format!("{begin}{attributes}/></testsuite>");
    let before = peak();
    let limits = Limits::default();
    let report = read(Format::Junit, text.as_bytes(), "", &limits, &mut drop);
    let malformed = matches!(report.problem, Some(Problem::Malformed { .. }));
    assert!(malformed, "{:?}", report.problem);
    let grown = grown_since(before);
    assert!(grown < MOST, "{} MiB", grown >> 20);
    // As many as any tool writes are fine.
    let few: String = (0..60).map(|n| format!(" a{n}=\"\"")).collect();
    let text = format!("{begin}{few}/></testsuite>");
    let report = read(Format::Junit, text.as_bytes(), "", &limits, &mut drop);
    assert!(report.problem.is_none(), "{:?}", report.problem);
}

#[test]
fn lines_of_json_are_not_held_twice() {
    let line = |inner: &str| {
        let much = inner.repeat((3 << 20) / inner.len());
        format!("{{\"name\":\"a\",\"status\":\"pass\",\"x\":[{much}0]}}\n")
    };
    for inner in ["0,", "[],", "\"\","] {
        holds_within(32 << 20, Format::Json, "", &line(inner));
    }
}
