//! A call to make, and a call as it stands.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::error::{ClientError, FunctionFailed};

/// A call to make: `handler`, or `runner#handler`, and how it is treated. What is not said is the
/// server's to decide.
#[derive(Debug)]
#[must_use]
pub struct NewCall {
    fields: Fields,
    /// Said where the call is made: a chain of words has no place for it.
    wrong: Option<serde_json::Error>,
}

/// In the words of the API.
#[derive(Debug, Default, Serialize)]
struct Fields {
    function: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_cap_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_ttl_seconds: Option<f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    trace_context: BTreeMap<String, String>,
}

impl From<&str> for NewCall {
    fn from(function: &str) -> NewCall {
        NewCall::new(function)
    }
}

impl NewCall {
    /// With the feature `otel`, it belongs to the application's current trace.
    pub fn new(function: impl Into<String>) -> NewCall {
        NewCall {
            fields: Fields {
                function: function.into(),
                #[cfg(feature = "otel")]
                trace_context: crate::current_trace(),
                ..Fields::default()
            },
            wrong: None,
        }
    }

    /// Anything that writes as a JSON object.
    pub fn params(mut self, params: impl Serialize) -> NewCall {
        match to_raw_value(&params) {
            Ok(params) => self.fields.params = Some(params),
            Err(error) => self.wrong = Some(error),
        }
        self
    }

    /// Where it waits.
    pub fn queue(mut self, queue: impl Into<String>) -> NewCall {
        self.fields.queue = Some(queue.into());
        self
    }

    /// Higher is sooner.
    pub fn priority(mut self, priority: i32) -> NewCall {
        self.fields.priority = Some(priority);
        self
    }

    /// Not before so much time has passed.
    pub fn delay(mut self, delay: Duration) -> NewCall {
        self.fields.delay_seconds = Some(delay.as_secs_f64());
        self
    }

    /// Not before this moment.
    pub fn not_before(mut self, moment: Timestamp) -> NewCall {
        self.fields.not_before = Some(moment);
        self
    }

    /// While another call of the queue has this key, that one is given back.
    pub fn unique_key(mut self, key: impl Into<String>) -> NewCall {
        self.fields.unique_key = Some(key.into());
        self
    }

    /// For how long the key is its own.
    pub fn unique_for(mut self, time: Duration) -> NewCall {
        self.fields.unique_seconds = Some(time.as_secs_f64());
        self
    }

    /// Attempts in all.
    pub fn max_attempts(mut self, most: u32) -> NewCall {
        self.fields.max_attempts = Some(most);
        self
    }

    /// First delay between attempts; doubled each time, with jitter.
    pub fn backoff(mut self, first: Duration) -> NewCall {
        self.fields.backoff_seconds = Some(first.as_secs_f64());
        self
    }

    /// Longest delay between attempts.
    pub fn backoff_cap(mut self, longest: Duration) -> NewCall {
        self.fields.backoff_cap_seconds = Some(longest.as_secs_f64());
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> NewCall {
        self.fields.timeout_seconds = Some(timeout.as_secs_f64());
        self
    }

    /// How long call and result are kept after the end.
    pub fn result_ttl(mut self, time: Duration) -> NewCall {
        self.fields.result_ttl_seconds = Some(time.as_secs_f64());
        self
    }

    /// The producer's trace, in W3C's words: `traceparent`, `tracestate`. The handler gets it,
    /// instead of the current one.
    pub fn trace_context<K, V>(mut self, carrier: impl IntoIterator<Item = (K, V)>) -> NewCall
    where
        K: Into<String>,
        V: Into<String>,
    {
        let carrier = carrier.into_iter().map(|(k, v)| (k.into(), v.into()));
        self.fields.trace_context = carrier.collect();
        self
    }

    pub(super) fn body(self) -> Result<Box<RawValue>, ClientError> {
        match self.wrong {
            Some(error) => Err(ClientError::Params(error)),
            None => to_raw_value(&self.fields).map_err(ClientError::Params),
        }
    }
}

/// A call as it stood when the server was asked.
#[derive(Clone, Debug, Deserialize)]
pub struct Call {
    pub id: String,
    pub function: String,
    pub queue: String,
    /// As the server spells it: `QUEUED`, `RUNNING`, `SUCCEEDED`, …
    pub state: String,
    pub attempts: u32,
    pub max_attempts: u32,
    pub cause: Option<String>,
    /// What the agent or the server says of its end.
    pub summary: Option<String>,
    /// As the handler wrote it.
    pub result: Option<Box<RawValue>>,
    pub error: Option<CallError>,
    /// It failed for good, and nobody has put it aside yet.
    #[serde(default)]
    pub dead_letter: bool,
    /// An earlier call had the key, and is this one.
    #[serde(default)]
    pub existing: bool,
    pub created_at: Timestamp,
    pub not_before: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// How the latest attempt that said something went wrong, in the words of the handler or its
/// runner.
#[derive(Clone, Debug, Deserialize)]
pub struct CallError {
    pub message: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub code: Option<String>,
    pub details: Option<Box<RawValue>>,
}

impl Call {
    /// Nothing will happen to it by itself any more.
    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// What the handler returned, once it has.
    pub fn into_result<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        if self.state != "SUCCEEDED" {
            let call = Box::new(self);
            return Err(FunctionFailed { call }.into());
        }
        let result = self.result.as_ref().map_or("null", |result| result.get());
        serde_json::from_str(result).map_err(ClientError::Result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_the_words_of_the_api() {
        let second = Duration::from_secs(1);
        let call = NewCall::new("python#f")
            .params([("a", 1)].into_iter().collect::<BTreeMap<_, _>>())
            .queue("mail")
            .priority(-1)
            .delay(second)
            .not_before(Timestamp::UNIX_EPOCH)
            .unique_key("k")
            .unique_for(second)
            .max_attempts(5)
            .backoff(second)
            .backoff_cap(second)
            .timeout(second)
            .result_ttl(second)
            .trace_context([("traceparent", "00-aa-bb-01")]);
        let body = call.body().expect("a body");
        let expected = r#"{"function":"python#f","params":{"a":1},"queue":"mail","priority":-1,"#
            .to_owned()
            + r#""delay_seconds":1.0,"not_before":"1970-01-01T00:00:00Z","unique_key":"k","#
            + r#""unique_seconds":1.0,"max_attempts":5,"backoff_seconds":1.0,"#
            + r#""backoff_cap_seconds":1.0,"timeout_seconds":1.0,"result_ttl_seconds":1.0,"#
            + r#""trace_context":{"traceparent":"00-aa-bb-01"}}"#;
        assert_eq!(body.get(), expected);
    }

    #[test]
    fn a_call_that_its_runner_said_nothing_of_says_what_the_agent_did() {
        let view = r#"{"id":"run_1","function":"f","queue":"default","state":"FAILED","attempts":1,
            "max_attempts":1,"cause":"agent_error","summary":"the runner closed the connection",
            "created_at":"2026-01-04T08:00:00Z"}"#;
        let call: Call = serde_json::from_str(view).expect("a view");
        let error = call.into_result::<()>().expect_err("it failed");
        assert_eq!(error.to_string(), "the runner closed the connection");
    }

    // RQ-28
    #[cfg(feature = "otel")]
    #[test]
    fn a_call_belongs_to_the_trace_that_it_is_made_in() {
        use opentelemetry::Context;
        use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};
        let body = |call: NewCall| call.body().expect("a body").get().to_owned();
        let span = SpanContext::new(
            TraceId::from(0xaa),
            SpanId::from(0xbb),
            TraceFlags::SAMPLED,
            true,
            Default::default(),
        );
        let current = Context::new().with_remote_span_context(span).attach();
        let made = body(NewCall::new("f"));
        let parent = format!("00-{:032x}-{:016x}-01", 0xaa, 0xbb);
        assert!(made.contains(&parent), "{made}");
        let own = body(NewCall::new("f").trace_context([("traceparent", "own")]));
        assert!(own.contains(r#"{"traceparent":"own"}"#), "{own}");
        drop(current);
        assert_eq!(body(NewCall::new("f")), r#"{"function":"f"}"#);
    }

    #[test]
    fn parameters_that_are_no_json_are_said_where_the_call_is_made() {
        let no_names = BTreeMap::from([(vec![1], 2)]);
        let error = NewCall::new("f").params(no_names).body();
        assert!(matches!(error, Err(ClientError::Params(_))), "{error:?}");
    }

    #[test]
    fn a_result_is_read_as_what_it_is_asked_for() {
        let text = |state: &str, rest: &str| {
            format!(
                r#"{{"id":"run_1","function":"f","queue":"q","state":"{state}","attempts":2,
                "max_attempts":3,"created_at":"2026-01-31T12:00:00Z"{rest}}}"#
            )
        };
        let call = |text: String| serde_json::from_str::<Call>(&text).expect("a call");
        let done = call(text("SUCCEEDED", r#","result":{"n":1}"#));
        let result: BTreeMap<String, u8> = done.clone().into_result().expect("a result");
        assert_eq!(result["n"], 1);
        let other: Result<String, _> = done.into_result();
        assert!(matches!(other, Err(ClientError::Result(_))));
        let nothing: Result<(), _> = call(text("SUCCEEDED", "")).into_result();
        assert!(nothing.is_ok());
        let failed = call(text(
            "FAILED",
            r#","error":{"message":"m","type":"t","details":[1]}"#,
        ));
        let error = failed.into_result::<()>().expect_err("it failed");
        assert_eq!(error.to_string(), "m");
        let ClientError::Failed(failed) = error else {
            panic!("{error:?}")
        };
        let said = failed.call.error.expect("an error");
        assert_eq!(
            (said.kind.as_deref(), said.details.expect("details").get()),
            (Some("t"), "[1]")
        );
        let lost = call(text("FAILED", r#","cause":"lease_lost""#));
        let error = lost.into_result::<()>().expect_err("it failed");
        assert_eq!(error.to_string(), "lease_lost");
    }
}
