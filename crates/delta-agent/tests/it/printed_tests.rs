//! Tests that failed by what was printed: named where no report tells of them, and nothing more.

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::{RunStatus, TestStatus};
use serde_json::json;

use crate::agent::Agent;
use crate::fake_server::{FakeServer, State};

const PRINTED: &str = "cat <<'END'\nrunning 2 tests\ntest a::bad ... FAILED\ntest a::good ... ok\n\
    \nfailures:\n\n---- a::bad stdout ----\nthread 'a::bad' panicked at src/lib.rs:3:5:\nboo\n\
    stack backtrace:\n   0: main\n\nfailures:\n    a::bad\n\ntest result: FAILED. 1 passed; \
    1 failed; 0 ignored; 0 measured; 0 filtered out\nEND\n";

fn named(state: &State) -> Vec<(String, TestStatus, String)> {
    let results = state.seen.iter().filter_map(|(_, said)| match said {
        Said::Result(result) => match &result.payload {
            Some(Payload::TestResult(it)) => {
                Some((it.name.clone(), it.status(), it.error_message.clone()))
            }
            _ => None,
        },
        _ => None,
    });
    results.collect()
}

/// The server asks by `failed_by_tests` whether flaky tests may be the cause: words of a log are
/// none.
#[tokio::test]
async fn a_printed_failure_is_named_and_neither_counted_nor_blamed() {
    let other = PRINTED.replace("a::bad", "b::excused");
    let spec = json!({
        "steps": [{ "run": format!("{other}exit 1"), "continue_on_error": true },
                  format!("{PRINTED}exit 101")],
        "count_tests": "output",
    });
    let server = FakeServer::start(&[spec]).await;
    let agent = Agent::start(&server);
    let ended = server.wait_results(1).await;
    let said = "boo\nat src/lib.rs:3:5".to_owned();
    let wanted = [("a::bad".to_owned(), TestStatus::Fail, said)];
    let (log, named) = (server.log(), named(&server.state()));
    assert_eq!(named, wanted, "{log}");
    assert_eq!(ended[0].status(), RunStatus::Failure);
    assert_eq!(ended[0].exit_code, Some(101));
    assert_eq!(ended[0].summary, None);
    assert_eq!(ended[0].failed_by_tests, Some(false));
    agent.shut_down().await;
}

/// What a step prints that succeeds is its own affair, and so is it where nobody asked.
#[tokio::test]
async fn what_work_prints_that_succeeds_names_nothing() {
    let spec = json!({ "steps": [PRINTED], "count_tests": "output" });
    let unasked = json!({ "steps": [format!("{PRINTED}exit 1")] });
    let server = FakeServer::start(&[spec, unasked]).await;
    let agent = Agent::start(&server);
    let ended = server.wait_results(2).await;
    assert_eq!(named(&server.state()), []);
    assert!(ended.iter().all(|it| it.summary.is_none()));
    assert!(ended.iter().all(|it| it.failed_by_tests.is_none()));
    agent.shut_down().await;
}
