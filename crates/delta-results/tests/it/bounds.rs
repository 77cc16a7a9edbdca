//! Any bytes at all, whole and mixed into real reports: never a panic, never more than the bounds.

use delta_results::{Format, Limits, read};
use proptest::prelude::*;

const TIGHT: Limits = Limits {
    bytes: 4_096,
    cases: 50,
    depth: 8,
    name: 40,
    message: 60,
    trace: 80,
    metadata: 3,
};

fn holds(format: Format, bytes: &[u8]) {
    let mut seen = 0;
    let report = read(format, bytes, "/build/app", &TIGHT, &mut |case| {
        seen += 1;
        assert!(case.name.len() <= TIGHT.name && case.suite.len() <= TIGHT.name);
        assert!(
            case.message
                .is_none_or(|message| message.len() <= TIGHT.message)
        );
        assert!(case.trace.is_none_or(|trace| trace.len() <= TIGHT.trace));
        assert!(case.metadata.len() <= TIGHT.metadata);
    });
    assert!(seen <= TIGHT.cases);
    assert_eq!(report.totals.seen.total(), seen);
}

fn format() -> impl Strategy<Value = Format> {
    proptest::sample::select(Format::ALL.to_vec())
}

/// Words that the formats are made of, so that random reports get somewhere.
fn words() -> impl Strategy<Value = String> {
    let words = [
        "<testsuite name=\"a\">",
        "</testsuite>",
        "<testcase name=\"t\" time=\"1e400\">",
        "</testcase>",
        "<failure>",
        "</failure>",
        "<![CDATA[",
        "]]>",
        "&amp;",
        "&#",
        "<TestRun>",
        "<UnitTestResult testName=\"x\" outcome=\"Failed\">",
        "</UnitTestResult>",
        "</TestRun>",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"tests\"",
        "\"testResults\"",
        "\"suites\"",
        "\"title\"",
        "\"name\"",
        "\"status\"",
        "\"pass\"",
        "\"Action\"",
        "\"type\"",
        "\"event\"",
        "1e999",
        "ok 1 - a\n",
        "not ok\n",
        "1..99999999999999999999\n",
        "    ",
        "  ---\n",
        "  ...\n",
        "# Subtest: s\n",
        "# SKIP x\n",
        "Bail out!\n",
        "\n",
        "\u{0}",
        "ä",
    ];
    let word = proptest::sample::select(words.to_vec());
    proptest::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_within_bounds(
        format in format(),
        bytes in proptest::collection::vec(any::<u8>(), 0..2_000),
    ) {
        holds(format, &bytes);
    }

    #[test]
    fn any_mixture_of_words_is_read_within_bounds(format in format(), text in words()) {
        holds(format, text.as_bytes());
    }
}
