//! What tools write in their own ways, in the shape of their reports: counted as they mean it.

use delta_results::{Case, Format, Report, Status};

use crate::cases;

/// Read to its end, and nothing that it says of is missing.
fn read_as_meant(format: Format, text: &str) -> (Vec<Case>, Report) {
    let (found, report) = cases(format, text.as_bytes());
    assert!(report.problem.is_none(), "{:?}", report.problem);
    assert!(!report.totals.lacks_failures(), "{:?}", report.totals);
    (found, report)
}

fn told(found: &[Case]) -> Vec<(&str, &str, Status)> {
    let told = found.iter();
    told.map(|told| (told.suite.as_str(), told.name.as_str(), told.status))
        .collect()
}

// Catch2 writes how many assertions there were.
const CATCH2: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="tests" errors="0" failures="0" skipped="0" tests="25" hostname="tbd" time="0.01">
    <properties><property name="random-seed" value="1"/></properties>
    <testcase classname="tests.global" name="adds" time="0.001" status="run"/>
    <testcase classname="tests.global" name="adds/negative" time="0.001" status="run"/>
    <system-out/>
    <system-err/>
  </testsuite>
</testsuites>
"#;

const DOCTEST: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="tests" errors="0" failures="2" tests="8">
    <testcase classname="a.cpp" name="fails twice" time="0.000006" status="run">
      <failure message="1 is not correct" type="CHECK">
a.cpp:5: CHECK( 1 == 2 ) is NOT correct!
      </failure>
      <failure message="3 is not correct" type="CHECK">
a.cpp:6: CHECK( 3 == 4 ) is NOT correct!
      </failure>
    </testcase>
    <testcase classname="a.cpp" name="passes" time="0.000001" status="run" />
  </testsuite>
</testsuites>
"#;

const GOOGLE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="0" disabled="1" errors="0" time="0.01" name="AllTests">
  <testsuite name="Cart" tests="4" failures="0" disabled="1" skipped="1" errors="0" time="0.01">
    <testcase name="Adds" file="a.cc" line="3" status="run" result="completed" classname="Cart" />
    <testcase name="DISABLED_Pays" status="notrun" result="suppressed" classname="Cart" />
    <testcase name="Ships" status="run" result="skipped" classname="Cart">
      <skipped message="a.cc:9&#x0A;no net"><![CDATA[a.cc:9
no net]]></skipped>
    </testcase>
    <testcase name="Old" status="notrun" time="0" classname="Cart" />
  </testsuite>
</testsuites>
"#;

// EP-15: how many tests there are is nobody's agreement.
#[test]
fn reports_that_count_assertions_are_read_as_they_were_meant() {
    let (found, report) = read_as_meant(Format::Junit, CATCH2);
    assert_eq!(report.totals.seen.passed, found.len() as u64);
    // It is said all the same.
    assert!(report.totals.is_contradicted());
    let (found, report) = read_as_meant(Format::Junit, DOCTEST);
    assert_eq!(told(&found)[0], ("a.cpp", "fails twice", Status::Fail));
    assert_eq!((report.totals.seen.failed, report.totals.failures), (1, 2));
    // A failure that it says of and that is nowhere is missed.
    let missing = DOCTEST.replace("failures=\"2\"", "failures=\"3\"");
    assert!(
        cases(Format::Junit, missing.as_bytes())
            .1
            .totals
            .lacks_failures()
    );
    // Vitest counted a test that is to be written twice.
    let todo = r#"{"numTotalTests":1,"numPassedTests":0,"numFailedTests":0,"numPendingTests":1,
        "numTodoTests":1,"testResults":[{"name":"a","status":"passed","message":"",
        "assertionResults":[{"title":"later","status":"todo"}]}]}"#;
    let (found, _) = read_as_meant(Format::Jest, todo);
    assert_eq!(told(&found), [("a", "later", Status::Skip)]);
}

#[test]
fn a_test_that_google_test_did_not_run_is_skipped() {
    let (found, report) = read_as_meant(Format::Junit, GOOGLE);
    let statuses: Vec<Status> = found.iter().map(|it| it.status).collect();
    let (pass, skip) = (Status::Pass, Status::Skip);
    assert_eq!(statuses, [pass, skip, skip, skip]);
    assert!(found[2].message.as_deref().unwrap().contains("no net"));
    assert_eq!(report.totals.seen.skipped, 3);
}

// A68: what failed outside of any test of it is no pass.
#[test]
fn a_file_of_vitest_that_failed_by_itself_is_an_error() {
    let file = |status: &str, message: &str| {
        format!(
            r#"{{"testResults":[{{"name":"a.test.ts","status":"{status}","message":"{message}",
            "assertionResults":[{{"title":"t","status":"passed"}}]}}]}}"#
        )
    };
    for (status, message) in [
        ("failed", ""),
        ("passed", "afterAll threw"),
        ("failed", "x"),
    ] {
        let (found, _) = read_as_meant(Format::Jest, &file(status, message));
        let itself = ("a.test.ts", "(the file itself)", Status::Error);
        assert_eq!(told(&found)[1], itself, "{status} {message}");
    }
    let (found, _) = read_as_meant(Format::Jest, &file("passed", ""));
    assert_eq!(found.len(), 1);
}

const VITEST: &str = "TAP version 13
1..2
not ok 1 - a.test.ts # time=120.50ms {
    1..3
    not ok 1 - outer # time=53.06ms {
        1..3
        ok 1 - good # time=1.59ms
        not ok 2 - bad # time=50.83ms
          ---
          error:
            name: \"AssertionError\"
            message: \"expected 1 to be 2\"
          at: \"/build/app/a.test.ts:2:81\"
          ...
        ok 3 - later # SKIP
    }
    ok 2 - parses {
    not ok 3 - empty in the end # time=1ms {
        1..1
        ok 1 - fine
    }
}
ok 2 - b.test.ts # time=2ms {
    1..1
    ok 1 - only # time=1ms
}
";

#[test]
fn levels_that_vitest_opens_with_a_brace_are_told_from_tests() {
    let (found, _) = read_as_meant(Format::Tap, VITEST);
    let (pass, fail, skip) = (Status::Pass, Status::Fail, Status::Skip);
    let expected = [
        ("a.test.ts > outer", "good", pass),
        ("a.test.ts > outer", "bad", fail),
        ("a.test.ts > outer", "later", skip),
        ("a.test.ts", "parses {", pass),
        ("a.test.ts > empty in the end", "fine", pass),
        // It failed though nothing in it did.
        ("a.test.ts", "empty in the end", fail),
        ("b.test.ts", "only", pass),
    ];
    assert_eq!(told(&found), expected);
    assert_eq!(found[1].message.as_deref(), Some("expected 1 to be 2"));
    // Wherever it breaks off, the plan of a level or its brace is missing.
    for cut in (20..VITEST.len() - 2).filter(|cut| VITEST.as_bytes()[cut - 1] == b'\n') {
        let (_, report) = cases(Format::Tap, &VITEST.as_bytes()[..cut]);
        assert!(report.problem.is_some(), "{}", &VITEST[..cut]);
    }
}
