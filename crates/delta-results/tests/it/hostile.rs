//! Reports that mean harm (T11, T12): each costs a bounded amount and hurts nobody else's cases.

use delta_results::{Format, Limits, Problem, Status, read};

use crate::cases;

#[test]
fn a_document_type_is_refused_before_anything_is_expanded() {
    let laughs = "<?xml version=\"1.0\"?><!DOCTYPE lolz [<!ENTITY lol \"lol\"><!ENTITY lol2 \
        \"&lol;&lol;&lol;\">]><testsuites><testsuite name=\"&lol2;\"/></testsuites>";
    let outside = "<!DOCTYPE x SYSTEM \"file:///etc/passwd\"><testsuite/>";
    for bomb in [laughs, outside] {
        let (found, report) = cases(Format::Junit, bomb.as_bytes());
        assert!(found.is_empty());
        assert!(
            matches!(report.problem, Some(Problem::Doctype)),
            "{:?}",
            report.problem
        );
    }
}

#[test]
fn an_entity_nobody_declared_stands_for_itself() {
    let text = "<testsuite><testcase name=\"a&amp;b\"><failure>&lt;x&gt; &unknown; &#65;&#x1F600; \
        &#0; a & b</failure></testcase></testsuite>";
    let (found, _) = cases(Format::Junit, text.as_bytes());
    assert_eq!(found[0].name, "a&b");
    let trace = found[0].trace.as_deref().unwrap();
    assert!(trace.starts_with("<x> &unknown; A😀"), "{trace}");
    assert!(trace.ends_with("a & b"), "{trace}");
}

#[test]
fn depth_is_bounded_in_every_format() {
    let deep = |open: &str, n: usize| open.repeat(n);
    let xml = format!("<testsuites>{}", deep("<testsuite name=\"s\">", 10_000));
    let (_, report) = cases(Format::Junit, xml.as_bytes());
    assert!(matches!(report.problem, Some(Problem::TooDeep(_))));
    let inside = format!("<testsuite><testcase name=\"t\">{}", deep("<x>", 10_000));
    let (_, report) = cases(Format::Junit, inside.as_bytes());
    assert!(matches!(report.problem, Some(Problem::TooDeep(_))));
    for format in [Format::Jest, Format::Playwright, Format::Json] {
        for start in [
            "{\"testResults\":",
            "{\"suites\":",
            "{\"tests\":",
            "{\"x\":",
            "",
        ] {
            let json = format!("{start}{}", deep("[", 100_000));
            let (found, report) = cases(format, json.as_bytes());
            assert!(
                found.is_empty() && report.problem.is_some(),
                "{format:?} {start}"
            );
        }
    }
    let suites = format!(
        "{{\"suites\":[{}",
        deep("{\"title\":\"a\",\"suites\":[", 10_000)
    );
    assert!(
        cases(Format::Playwright, suites.as_bytes())
            .1
            .problem
            .is_some()
    );
    let tap = format!("1..1\n{}ok 1\n", " ".repeat(400));
    let (_, report) = cases(Format::Tap, tap.as_bytes());
    assert!(matches!(report.problem, Some(Problem::TooDeep(_))));
}

#[test]
fn texts_names_and_metadata_are_cut() {
    let limits = Limits::default();
    let huge = "x".repeat(1 << 20);
    let properties: String = (0..1_000)
        .map(|n| format!("<property name=\"p{n}\" value=\"{}\"/>", &huge[..5_000]))
        .collect();
    let xml = format!(
        "<testsuite name=\"{huge}\"><testcase name=\"{huge}\" time=\"-5\"><properties>{properties}\
         </properties><failure message=\"{huge}\">{huge}</failure></testcase></testsuite>"
    );
    let (found, report) = cases(Format::Junit, xml.as_bytes());
    assert!(report.problem.is_none(), "{:?}", report.problem);
    let case = &found[0];
    assert_eq!(case.duration_ms, None);
    assert!(case.name.len() <= limits.name && case.suite.len() <= limits.name);
    assert!(case.message.as_ref().unwrap().len() <= limits.message);
    assert!(case.trace.as_ref().unwrap().len() <= limits.trace);
    assert!(case.metadata.len() <= limits.metadata);
    assert!(
        case.metadata
            .values()
            .all(|value| value.len() <= limits.name)
    );
}

#[test]
fn cases_and_bytes_are_counted() {
    let limits = Limits {
        cases: 3,
        ..Limits::default()
    };
    let mut seen = 0;
    let tap = b"1..5\nok 1\nok 2\nok 3\nok 4\nok 5\n";
    let report = read(Format::Tap, &tap[..], "", &limits, &mut |_| seen += 1);
    assert!(seen == 3 && matches!(report.problem, Some(Problem::TooMany(3))));
    let limits = Limits {
        bytes: 1_000,
        ..Limits::default()
    };
    for format in Format::ALL {
        let endless = std::io::BufReader::new(std::io::repeat(b' '));
        let report = read(format, endless, "", &limits, &mut |_| {});
        assert!(
            matches!(report.problem, Some(Problem::TooLarge(1_000))),
            "{format:?}"
        );
    }
}

#[test]
fn bytes_that_are_no_text_cost_themselves() {
    let mut xml = b"<testsuite><testcase name=\"a\"><failure>".to_vec();
    xml.extend([0xff, 0xfe, b'x']);
    xml.extend(b"</failure></testcase><testcase name=\"b\"/></testsuite>");
    let (found, report) = cases(Format::Junit, &xml);
    assert!(report.problem.is_none(), "{:?}", report.problem);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].status, Status::Fail);
}

#[test]
fn what_is_no_report_at_all_says_so() {
    for (format, text) in [
        (Format::Junit, "<html><body/></html>"),
        (Format::Junit, "not xml"),
        (Format::Tap, "hello\nworld\n"),
        (Format::Json, "hello\nworld\n"),
        (Format::Jest, "[1,2]"),
        (Format::Playwright, "\"x\""),
    ] {
        let (found, report) = cases(format, text.as_bytes());
        assert!(
            found.is_empty() && report.problem.is_some(),
            "{format:?} {text}"
        );
    }
    for format in Format::ALL {
        assert!(cases(format, b"").1.problem.is_some(), "{format:?}");
    }
}

#[test]
fn a_report_that_contradicts_itself_is_noticed() {
    // EP-15: what was read wins.
    let honest =
        b"<testsuite tests=\"2\" failures=\"1\"><testcase name=\"a\"/><testcase name=\"b\">\
        <failure/></testcase></testsuite>";
    let (_, report) = cases(Format::Junit, honest);
    assert!(!report.totals.is_contradicted(), "{:?}", report.totals);
    let lie = b"<testsuite tests=\"2\" failures=\"0\"><testcase name=\"a\"/><testcase name=\"b\">\
        <failure/></testcase></testsuite>";
    let (_, report) = cases(Format::Junit, lie);
    assert!(report.totals.is_contradicted() && report.totals.seen.failed == 1);
}
