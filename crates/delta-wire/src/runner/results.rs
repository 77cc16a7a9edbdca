//! Results of tests over HTTP: TestResults and its answer. What is repeated does no harm: a result
//! is known by its test and its number.

use serde::Serialize;

use super::{LeaseToken, MAX_WORD, Message, id};
use crate::agent::proto;
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;

/// Results of one message: as many as fit into a request of ordinary size.
pub const MAX_RESULTS: usize = 1000;
/// Entries of metadata that are read; the server keeps fewer.
pub(crate) const MAX_METADATA: usize = 256;

/// Tests have ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TestResults {
    pub lease_id: LeaseToken,
    pub runner_id: String,
    /// In the words of the Execution Protocol.
    pub results: Vec<proto::TestResult>,
    /// What all results of the lease come to, once that is known.
    pub summary: Option<proto::RunSummary>,
}

impl Message for TestResults {
    const TYPE: &'static str = "TestResults";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        Ok(TestResults {
            lease_id: f.must("lease_id", LeaseToken::read)?,
            runner_id: f.must("runner_id", id)?,
            results: f.must("results", |it| it.each(MAX_RESULTS, result))?,
            summary: f.may("summary", summary)?,
        })
    }
}

fn result(node: Node<'_>) -> Result<proto::TestResult, Invalid> {
    let mut f = node.object()?;
    let text = |it: Node<'_>| it.string();
    let result = proto::TestResult {
        test_id: f.may("test_id", text)?.unwrap_or_default(),
        name: f.must("name", text)?,
        suite: f.may("suite", text)?.unwrap_or_default(),
        status: f.must("status", status)?.into(),
        duration_ms: f
            .may("duration_ms", |it| it.whole(i64::MIN, i64::MAX))?
            .unwrap_or(-1),
        error_message: f.may("error_message", text)?.unwrap_or_default(),
        stack_trace: f.may("stack_trace", text)?.unwrap_or_default(),
        metadata: f.may("metadata", metadata)?.unwrap_or_default(),
        n: f.may("n", |it| it.whole(0, i64::from(u32::MAX)))?
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(0),
        withdrawn: false,
    };
    f.close();
    Ok(result)
}

fn status(node: Node<'_>) -> Result<proto::TestStatus, Invalid> {
    let name = node.text(MAX_WORD)?.to_ascii_uppercase();
    match proto::TestStatus::from_str_name(&name) {
        Some(proto::TestStatus::Unspecified) | None => {
            Err(Invalid::here("must be PASS, FAIL, SKIP or ERROR"))
        }
        Some(status) => Ok(status),
    }
}

fn metadata(node: Node<'_>) -> Result<std::collections::HashMap<String, String>, Invalid> {
    let fields = node.object()?;
    if fields.len() > MAX_METADATA {
        return Err(Invalid::here(format!(
            "has more than {MAX_METADATA} entries"
        )));
    }
    let entries = fields.entries().map(|(name, value)| {
        let value = value.string().map_err(|problem| problem.within(name))?;
        Ok((name.to_owned(), value))
    });
    entries.collect()
}

fn summary(node: Node<'_>) -> Result<proto::RunSummary, Invalid> {
    let mut f = node.object()?;
    let mut count = |name| {
        let count = f.may(name, |it| it.whole(0, i64::from(i32::MAX)))?;
        Ok::<_, Invalid>(count.and_then(|it| i32::try_from(it).ok()).unwrap_or(0))
    };
    let summary = proto::RunSummary {
        total_tests: count("total_tests")?,
        passed: count("passed")?,
        failed: count("failed")?,
        skipped: count("skipped")?,
        errors: count("errors")?,
        duration_ms: 0,
    };
    f.close();
    Ok(summary)
}

/// They are on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct TestResultsAck {
    /// Of this message.
    pub received: u64,
    /// The lease has as many as it may have; what was beyond is counted and dropped.
    pub full: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::parse;

    // EP-12
    #[test]
    fn results_are_read_and_what_is_wrong_is_named() {
        let with = |result: &str| {
            let text = format!(
                r#"{{"type":"TestResults","lease_id":"lease_abc","runner_id":"r",
                    "results":[{result}],"summary":{{"passed":1}}}}"#
            );
            parse::<TestResults>(text.as_bytes()).map(|it| it.message)
        };
        let read = with(r#"{"name":"a","status":"PASS","duration_ms":-4,"n":2}"#).unwrap();
        let result = &read.results[0];
        assert_eq!((result.status(), result.n), (proto::TestStatus::Pass, 2));
        assert_eq!(
            result.duration_ms, -4,
            "what it means is for the server to say"
        );
        assert_eq!(read.summary.unwrap().passed, 1);
        let wrong = with(r#"{"name":"a","status":"GREAT"}"#)
            .unwrap_err()
            .to_string();
        assert!(
            wrong.starts_with("results[0].status: must be PASS"),
            "{wrong}"
        );
        let wrong = with(r#"{"status":"PASS"}"#).unwrap_err().to_string();
        assert!(wrong.starts_with("results[0].name: is missing"), "{wrong}");
    }
}
