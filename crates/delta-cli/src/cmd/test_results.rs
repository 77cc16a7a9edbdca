//! `delta-ci tests`: the results of a run or a job, or one test over time.

use delta_wire::api::{
    TestCounts, TestHistory, TestList, TestStatus, TestTotals, TestVerdict, TestView,
};

use crate::client::find::{self, Found};
use crate::client::{self, Client, Target, query_value};
use crate::columns;
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::human_time;
use crate::sanitize;
use crate::state_words;
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone};

/// Pages that are asked for: a hundred thousand results, of which people read the first.
const MAX_PAGES: usize = 500;
/// Results of a page: as many as the server gives at once.
const PAGE: usize = 200;
/// Failures that `show` names.
const NAMED: usize = 5;

const EXAMPLES: &str = "\
Examples:
  delta-ci tests latest                what each test came to, failures first
  delta-ci tests latest --failed       only what went wrong, with messages
  delta-ci tests latest/unit           of one job
  delta-ci tests --history NAME        one test over time: is it flaky, is it broken?
  delta-ci tests --json latest | jq '.tests[].name'";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run or a job: its id or the beginning of it, `latest`, RUN/NAME, or the name of a job of
    /// the newest run that has it
    #[arg(value_name = "RUN|JOB", required_unless_present = "history")]
    what: Option<String>,
    /// Only tests that failed or could not be carried out
    #[arg(long, conflicts_with = "history")]
    failed: bool,
    /// Show the test of this name over time instead
    #[arg(long, value_name = "NAME", conflicts_with = "what")]
    history: Option<String>,
    /// Of --history: only in this suite
    #[arg(long, requires = "history")]
    suite: Option<String>,
    /// Of --history: only in this repository
    #[arg(long, requires = "history")]
    repository: Option<String>,
    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    client::reading(&args.target, async |client| {
        match (&args.history, &args.what) {
            (Some(name), _) => history(client, name, &args, terminal).await,
            (None, Some(what)) => list(client, what, args.failed, terminal).await,
            // clap does not let it come to this.
            (None, None) => Err(Failure::new(Exit::Usage, "a run or a job is missing")
                .next("delta-ci tests latest")),
        }
    })
    .await
}

async fn list(client: &Client, what: &str, failed: bool, terminal: &Terminal) -> Done {
    let path = path(&find::any(client, what, terminal).await?);
    let filter = if failed { "&status=failed" } else { "" };
    let mut page: TestList = client.get(&format!("{path}?limit={PAGE}{filter}")).await?;
    for _ in 1..MAX_PAGES {
        let Some(cursor) = page.next_cursor.take() else {
            break;
        };
        let next = format!("{path}?limit={PAGE}{filter}&cursor={cursor}");
        let next: TestList = client.get(&next).await?;
        page.tests.extend(next.tests);
        page.next_cursor = next.next_cursor;
    }
    if terminal.json {
        terminal.value(&page);
        return Ok(Exit::Ok);
    }
    for test in &page.tests {
        show_test(test, failed, terminal);
    }
    terminal.say(&sentence(&page.totals, &page.tests));
    for problem in problems(&page.totals) {
        terminal.say(&problem);
    }
    Ok(Exit::Ok)
}

fn path(found: &Found) -> String {
    match found {
        Found::Run(id) => format!("/api/v1/runs/{id}/tests"),
        Found::Job(id) => format!("/api/v1/jobs/{id}/tests"),
    }
}

fn show_test(test: &TestView, in_full: bool, terminal: &Terminal) {
    let (word, tone) = word(test.status);
    let word = terminal.paint_out(tone, &format!("{word:>5}"));
    let took = test
        .duration_ms
        .map_or(String::new(), |it| format!("  {it} ms"));
    let verdict = test.verdict.map(|it| format!("  ({})", meaning(it)));
    let verdict = verdict.unwrap_or_default();
    let name = full_name(&test.suite, &test.name);
    terminal.sentence(&format!("{word}  {name}{verdict}{took}"));
    if !in_full {
        return;
    }
    let text = test.trace.as_ref().or(test.message.as_ref());
    for line in text.into_iter().flat_map(|text| text.lines()) {
        terminal.data(&format!("         {}", sanitize::text(line)));
    }
}

/// What earlier results say of a test.
fn meaning(verdict: TestVerdict) -> &'static str {
    match verdict {
        TestVerdict::Flaky => "flaky: it passed and failed on the same source",
        TestVerdict::Broken => "broken: it only fails",
    }
}

fn full_name(suite: &str, name: &str) -> String {
    if suite.is_empty() {
        sanitize::text(name)
    } else {
        sanitize::text(&format!("{suite} › {name}"))
    }
}

fn word(status: TestStatus) -> (&'static str, Tone) {
    match status {
        TestStatus::Fail => ("FAIL", Tone::Bad),
        TestStatus::Error => ("ERROR", Tone::Bad),
        TestStatus::Skip => ("skip", Tone::Quiet),
        TestStatus::Pass => ("pass", Tone::Good),
    }
}

async fn history(client: &Client, name: &str, args: &Args, terminal: &Terminal) -> Done {
    let mut path = format!("/api/v1/tests?limit={PAGE}&name={}", query_value(name));
    for (key, value) in [("suite", &args.suite), ("repository", &args.repository)] {
        if let Some(value) = value {
            path.push_str(&format!("&{key}={}", query_value(value)));
        }
    }
    let found: TestHistory = client.get(&path).await?;
    if terminal.json {
        terminal.value(&found);
        return Ok(Exit::Ok);
    }
    let now = human_time::now();
    let row = |it: &delta_wire::api::PastTest| {
        let (word, tone) = word(it.status);
        let commit = it.commit.as_deref().unwrap_or("-");
        vec![
            Cell::toned(word, tone),
            Cell::from(human_time::relative(it.at, now)),
            Cell::from(
                it.duration_ms
                    .map_or("-".to_owned(), |ms| format!("{ms} ms")),
            ),
            Cell::from(sanitize::text(&commit.chars().take(12).collect::<String>())),
            Cell::from(sanitize::text(it.git_ref.as_deref().unwrap_or("-"))),
            Cell::from(sanitize::text(&it.suite)),
            Cell::toned(sanitize::text(&it.job_id), Tone::Quiet),
        ]
    };
    let rows: Vec<Vec<Cell>> = found.results.iter().map(row).collect();
    table::show(terminal, &columns::TESTS, &rows);
    for standing in &found.standings {
        let what = match standing.verdict {
            Some(verdict) => meaning(verdict),
            None => continue,
        };
        let (name, suite) = (sanitize::text(&found.name), sanitize::text(&standing.suite));
        let test = if suite.is_empty() {
            name
        } else {
            format!("{suite} › {name}")
        };
        terminal.say(&format!("{test} is {what}"));
    }
    Ok(Exit::Ok)
}

/// What `show` says of the tests of a run or a job: one line, and the first failures of jobs whose
/// failures were not `told`.
pub async fn in_short(
    client: &Client,
    found: &Found,
    told: &[String],
    terminal: &Terminal,
) -> Result<(), Failure> {
    let page = format!("{}?status=failed&limit=50", path(found));
    let page: TestList = client.get(&page).await?;
    if page.totals.is_empty() {
        return Ok(());
    }
    terminal.data("");
    terminal.sentence(&sentence(&page.totals, &page.tests));
    let untold = page.tests.iter().filter(|it| !told.contains(&it.job_id));
    for test in untold.take(NAMED) {
        show_test(test, false, terminal);
    }
    for problem in problems(&page.totals) {
        terminal.sentence(&problem);
    }
    Ok(())
}

/// `tests: 120 passed, 2 failed (1 flaky), 3 skipped`
fn sentence(totals: &[TestTotals], failures: &[TestView]) -> String {
    let mut sum = TestCounts::default();
    for it in totals {
        sum.passed += it.counts.passed;
        sum.failed += it.counts.failed;
        sum.skipped += it.counts.skipped;
        sum.errors += it.counts.errors;
    }
    if sum.total() == 0 {
        return "tests: none has a result".to_owned();
    }
    let flaky = failures
        .iter()
        .filter(|test| test.verdict == Some(TestVerdict::Flaky));
    let flaky = match flaky.count() {
        0 => String::new(),
        count => format!(" ({count} flaky)"),
    };
    // Where only failures were printed it is not known how many passed.
    let mut words = Vec::new();
    if sum.passed > 0 || sum.unhappy() == 0 {
        words.push(format!("{} passed", sum.passed));
    }
    if sum.unhappy() > 0 {
        words.push(format!("{} failed{flaky}", sum.unhappy()));
    }
    if sum.skipped > 0 {
        words.push(format!("{} skipped", sum.skipped));
    }
    format!("tests: {}", words.join(", "))
}

/// EP-15: what an agent claimed, where it is not what it sent.
fn problems(totals: &[TestTotals]) -> Vec<String> {
    let mut problems = Vec::new();
    for it in totals {
        if let Some(claimed) = &it.claimed {
            problems.push(format!(
                "{}: the agent speaks of {}, {} failed; it sent {}, {} failed",
                sanitize::text(&it.job_id),
                state_words::count(claimed.total(), "test"),
                claimed.unhappy(),
                it.counts.total(),
                it.counts.unhappy(),
            ));
        }
        if it.dropped > 0 {
            let job = sanitize::text(&it.job_id);
            problems.push(format!("{job}: {} results were too many", it.dropped));
        }
    }
    problems
}

#[cfg(test)]
mod shown {
    use super::*;

    fn totals(passed: u64, failed: u64, skipped: u64) -> TestTotals {
        TestTotals {
            job_id: "job_1".into(),
            attempt: 1,
            counts: TestCounts {
                passed,
                failed,
                skipped,
                errors: 0,
            },
            claimed: None,
            dropped: 0,
        }
    }

    fn failure(verdict: Option<TestVerdict>) -> TestView {
        TestView {
            job_id: "job_1".into(),
            attempt: 1,
            test_id: "t".into(),
            suite: "s\u{1b}[2J".into(),
            name: "n\rx".into(),
            status: TestStatus::Fail,
            duration_ms: None,
            message: None,
            trace: None,
            metadata: Default::default(),
            verdict,
            at: delta_wire::Millis(0),
        }
    }

    #[test]
    fn a_sentence_counts_what_matters() {
        let failures = [failure(Some(TestVerdict::Flaky)), failure(None)];
        let said = sentence(&[totals(100, 2, 3), totals(20, 0, 0)], &failures);
        assert_eq!(said, "tests: 120 passed, 2 failed (1 flaky), 3 skipped");
        assert_eq!(sentence(&[totals(1, 0, 0)], &[]), "tests: 1 passed");
        assert_eq!(sentence(&[totals(0, 2, 0)], &[]), "tests: 2 failed");
        assert_eq!(
            sentence(&[totals(0, 0, 0)], &[]),
            "tests: none has a result"
        );
    }

    // T20
    #[test]
    fn names_cannot_reach_the_terminal() {
        let test = failure(None);
        let name = full_name(&test.suite, &test.name);
        assert!(!name.contains(['\u{1b}', '\r']), "{name:?}");
    }

    #[test]
    fn a_claim_that_is_wrong_is_said() {
        let mut wrong = totals(1, 0, 0);
        wrong.claimed = Some(totals(2, 1, 0).counts);
        wrong.dropped = 4;
        let said = problems(&[wrong]);
        assert_eq!(said.len(), 2);
        assert!(said[0].contains("speaks of 3 tests, 1 failed; it sent 1, 0 failed"));
        assert_eq!(query_value("a b/ü"), "a%20b%2F%C3%BC");
    }
}
