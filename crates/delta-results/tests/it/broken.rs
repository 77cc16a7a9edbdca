//! Reports with something wrong in them: nothing of them is dropped in silence (A68).

use delta_results::{Format, Problem, Status};

use crate::cases;

fn is_malformed(problem: Option<&Problem>) -> bool {
    matches!(problem, Some(Problem::Malformed { .. }))
}

#[test]
fn a_line_of_ours_with_a_wrong_type_is_malformed() {
    let good = r#"{"name":"good","status":"pass"}"#;
    for wrong in [
        r#"{"name":"bad","status":"fail","duration_ms":"12"}"#,
        r#"{"name":"bad","status":"fail","metadata":5}"#,
        r#"{"name":"bad","status":"fail","metadata":{"a":5}}"#,
        r#"{"name":"bad","status":["fail"]}"#,
        r#"{"name":"bad","status":null}"#,
        r#"{"name":7,"status":"fail"}"#,
        r#"{"name":"bad","status":"fail"}{"name":"worse","status":"fail"}"#,
        r#"{"Action":"fail","Package":"p","Test":"T","Elapsed":"0.1"}"#,
    ] {
        let text = format!("{wrong}\nother output\n{good}\n");
        let (found, report) = cases(Format::Json, text.as_bytes());
        assert!(is_malformed(report.problem.as_ref()), "{wrong}: {report:?}");
        // The lines after it stand.
        assert!(found.iter().any(|it| it.name == "good"), "{wrong}");
    }
}

#[test]
fn what_is_null_in_our_schema_is_not_there() {
    let line = r#"{"name":"n","suite":null,"status":"fail","duration_ms":null,"message":null,
        "trace":null,"metadata":null}"#
        .replace('\n', " ");
    for text in [
        line.clone(),
        format!("[{line}]"),
        format!("{{\"tests\":[{line}]}}"),
    ] {
        let (found, report) = cases(Format::Json, text.as_bytes());
        assert!(report.problem.is_none(), "{text}: {report:?}");
        assert_eq!(
            (found[0].suite.as_str(), found[0].status),
            ("", Status::Fail)
        );
    }
}

#[test]
fn other_json_between_the_lines_is_skipped() {
    let text = "{\"level\":\"info\",\"type\":{},\"event\":1}\n\
        {\"name\":\"n\",\"status\":\"pass\"}\n\
        [1,2]\nnull\n{\"a\":{}}\n{\n}\n";
    let (found, report) = cases(Format::Json, text.as_bytes());
    assert_eq!(found.len(), 1);
    // A brace alone looks like an object that was cut.
    assert!(
        matches!(report.problem, Some(Problem::CutOff)),
        "{report:?}"
    );
}

#[test]
fn what_comes_after_a_report_is_not_dropped_in_silence() {
    let suite = "<testsuite><testcase name=\"a\"/></testsuite>";
    let jest = r#"{"testResults":[]}"#;
    for (format, whole) in [
        (Format::Junit, suite.to_owned()),
        (Format::Junit, format!("<testsuites>{suite}</testsuites>")),
        (Format::Junit, "<TestRun></TestRun>".to_owned()),
        (Format::Jest, jest.to_owned()),
        (Format::Playwright, r#"{"suites":[]}"#.to_owned()),
        (Format::Json, r#"[{"name":"a","status":"pass"}]"#.to_owned()),
    ] {
        let (_, report) = cases(format, format!("{whole}\n \n").as_bytes());
        assert!(report.problem.is_none(), "{whole}: {report:?}");
        for after in [whole.as_str(), "x", "\nDone in 2s\n"] {
            let (_, report) = cases(format, format!("{whole}{after}").as_bytes());
            assert!(
                is_malformed(report.problem.as_ref()),
                "{whole}{after}: {report:?}"
            );
        }
    }
    let remarks = format!("{suite}<!-- made by hand --><?pi?>\n");
    assert!(cases(Format::Junit, remarks.as_bytes()).1.problem.is_none());
}

#[test]
fn documents_and_lines_of_ours_may_follow_each_other() {
    let document = |name: &str, status: &str| {
        format!("{{\"tests\":[{{\"name\":\"{name}\",\"status\":\"{status}\"}}]}}")
    };
    let (one, two) = (document("one", "pass"), document("two", "fail"));
    let line = "{\"name\":\"three\",\"status\":\"fail\"}";
    for text in [
        format!("{one}\n{two}\n{line}\n"),
        format!("{one}{two}\n{line}"),
        format!("{line}\n{one}\n{two}\n"),
        format!("{{\n \"tests\": []\n}}\n{{\n{}\n{two}\n{line}\n", &one[1..]),
    ] {
        let (found, report) = cases(Format::Json, text.as_bytes());
        assert!(report.problem.is_none(), "{text}: {report:?}");
        assert_eq!(report.totals.seen.failed, 2, "{text}");
        assert_eq!(found.len(), 3, "{text}");
    }
    let (found, report) = cases(Format::Json, format!("{one}\nDone in 2s\n").as_bytes());
    assert!(is_malformed(report.problem.as_ref()) && found.len() == 1);
}

#[test]
fn tap_that_breaks_off_between_its_points_is_cut_off() {
    let is_cut = |text: &str| {
        let (_, report) = cases(Format::Tap, text.as_bytes());
        matches!(report.problem, Some(Problem::CutOff))
    };
    // A plan at the end is missing.
    assert!(is_cut("TAP version 13\nok 1\nok 2\n"));
    assert!(!is_cut("TAP version 13\nok 1\nok 2\n1..2\n"));
    // The subtest's own point is missing, or points of the subtest are.
    assert!(is_cut("1..1\n# Subtest: a\n    ok 1\n"));
    assert!(is_cut("ok 1\n    ok 1\n"));
    assert!(is_cut("1..1\n    1..2\n    ok 1\nok 1\n"));
    assert!(!is_cut("1..1\n    1..1\n    ok 1\nok 1\n"));
    assert!(is_cut("1..2\nok 1\n"));
    // More than were planned is said.
    let (_, report) = cases(Format::Tap, b"1..1\nok 1\nnot ok 2\n");
    assert!(report.problem.is_none() && report.totals.is_contradicted());
}

#[test]
fn a_package_of_go_that_did_not_end_is_an_error() {
    let start = r#"{"Action":"start","Package":"p"}"#;
    let ran = r#"{"Action":"pass","Package":"p","Test":"T","Elapsed":0}"#;
    let output = r#"{"Action":"output","Package":"p","Output":"exit status 2\n"}"#;
    let build = r#"{"Action":"build-output","ImportPath":"p","Output":"a warning\n"}"#;
    for begun in [start, output] {
        let (found, report) = cases(Format::Json, format!("{begun}\n{ran}\n").as_bytes());
        assert!(
            matches!(report.problem, Some(Problem::CutOff)),
            "{report:?}"
        );
        let itself = found.last().unwrap();
        assert_eq!(itself.name, "(the package itself)");
        assert_eq!(itself.status, Status::Error);
    }
    let end = r#"{"Action":"pass","Package":"p","Elapsed":0.1}"#;
    let whole = [start, build, output, ran, end].join("\n");
    let (found, report) = cases(Format::Json, whole.as_bytes());
    assert!(report.problem.is_none() && found.len() == 1, "{report:?}");
}

#[test]
fn a_suite_of_libtest_that_did_not_end_is_cut_off() {
    let lines = [
        r#"{"type":"suite","event":"started","test_count":1}"#,
        r#"{"type":"test","event":"ok","name":"a::b"}"#,
        r#"{"type":"suite","event":"ok","passed":1,"failed":0,"ignored":0}"#,
    ];
    let (_, report) = cases(Format::Json, lines.join("\n").as_bytes());
    assert!(report.problem.is_none(), "{report:?}");
    let (_, report) = cases(Format::Json, lines[..2].join("\n").as_bytes());
    assert!(
        matches!(report.problem, Some(Problem::CutOff)),
        "{report:?}"
    );
}
