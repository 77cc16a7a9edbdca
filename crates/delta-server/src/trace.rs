//! What the server tells of a job's trace (RQ-28): that it was taken, and how long it waited.
//!
//! Owns the spans `delta.enqueue` and `delta.wait`, and which trace a call belongs to: the one its
//! producer names, or one of its own, whose id is the run's. Puts nothing into a span but names,
//! numbers and ids.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use delta_core::{AttemptId, JobId, Millis, RunId};
use delta_trace::context::{TRACEPARENT, TRACESTATE, carry};
use delta_trace::{Carrier, Kind, Span, TraceContext};
use delta_wire::api::{CreateFunction, FunctionView};
use serde::Deserialize;

use crate::app::App;
use crate::writer::GrantedLease;

/// A call on its way into its queue.
pub struct Enqueue {
    /// What its handler is to continue.
    pub carrier: Carrier,
    span: Option<Span>,
}

impl Enqueue {
    /// Begins it. What the call itself names counts before what its request does.
    pub fn begin(app: &App, call: &CreateFunction, request: &Carrier, id: RunId) -> Enqueue {
        let mut carrier = call.trace_context.clone();
        if TraceContext::of(&carrier).is_none() && TraceContext::of(request).is_some() {
            carrier = carry(carrier, None);
            carrier.extend(request.iter().cloned());
        }
        let parent = TraceContext::of(&carrier);
        let mut begun = app
            .tracer
            .begin("delta.enqueue", Kind::Server, parent, id.0);
        if let Some(span) = &mut begun.span {
            span.set("delta.queue", call.queue.clone());
        }
        Enqueue {
            carrier: carry(carrier, begun.context),
            span: begun.span,
        }
    }

    /// It is on disk, or was there already.
    pub fn end(self, run: RunId, view: &FunctionView) {
        let Some(mut span) = self.span else { return };
        job(&mut span, run.job(1));
        span.set("delta.function", view.function.clone());
        span.set("delta.existing", view.existing);
        span.end();
    }
}

/// The trace of a request, where one header names it.
pub fn of_request(headers: &HeaderMap) -> Carrier {
    let text = |name: &str| {
        let all = headers.get_all(name).iter().map(|it| it.to_str().ok());
        let all: Option<Vec<&str>> = all.collect();
        // Several states are one in several pieces; several parents are none, which the comma says.
        all.filter(|it| !it.is_empty()).map(|it| it.join(","))
    };
    let named = |name: &str| Some((name.to_owned(), text(name)?));
    [TRACEPARENT, TRACESTATE]
        .into_iter()
        .filter_map(named)
        .collect()
}

/// A job was given to somebody: tells how long it had waited in its queue.
pub fn waited(app: &App, granted: &GrantedLease) {
    let Some(since) = granted.waits_since.filter(|_| app.tracer.is_on()) else {
        return;
    };
    let asked = serde_json::from_str::<Spec>(&granted.spec).unwrap_or_default();
    let function = asked.function.unwrap_or_default();
    let carrier: Carrier = function.trace_context.into_iter().collect();
    let lease = granted.lease;
    let (parent, own) = (TraceContext::of(&carrier), lease.attempt.run().0);
    let begun = app.tracer.begin("delta.wait", Kind::Internal, parent, own);
    let Some(mut span) = begun.span else { return };
    attempt(&mut span, lease.attempt);
    span.set("delta.lease_epoch", number(lease.epoch));
    span.set("delta.job", granted.name.to_string());
    for (name, value) in [
        ("delta.function", function.name),
        ("delta.queue", function.queue),
    ] {
        if let Some(value) = value {
            span.set(name, value);
        }
    }
    span.began_at(moment(since));
    span.end_at(moment(app.writer.now()));
}

/// Of a job's spec, what a trace shows.
#[derive(Default, Deserialize)]
struct Spec {
    function: Option<Function>,
}

#[derive(Default, Deserialize)]
struct Function {
    name: Option<String>,
    queue: Option<String>,
    #[serde(default)]
    trace_context: BTreeMap<String, String>,
}

fn job(span: &mut Span, id: JobId) {
    span.set("delta.run_id", id.run.to_string());
    span.set("delta.job_id", id.to_string());
}

fn attempt(span: &mut Span, id: AttemptId) {
    job(span, id.job);
    span.set("delta.attempt", i64::from(id.index));
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn moment(at: Millis) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(at.0).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn request(headers: &[(&'static str, &'static str)]) -> Carrier {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        of_request(&map)
    }

    // RQ-28
    #[test]
    fn one_parent_is_a_trace_and_two_are_none() {
        assert_eq!(request(&[]), Carrier::new());
        let one = request(&[
            ("traceparent", GOOD),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
        ]);
        assert_eq!(TraceContext::of(&one).unwrap().to_string(), GOOD);
        assert!(
            one.contains(&("tracestate".into(), "a=1,b=2".into())),
            "{one:?}"
        );
        let two = request(&[("traceparent", GOOD), ("traceparent", GOOD)]);
        assert_eq!(TraceContext::of(&two), None);
        assert_eq!(TraceContext::of(&request(&[("traceparent", "x")])), None);
    }

    #[test]
    fn of_a_spec_only_what_a_trace_shows_is_read() {
        let text = r#"{"name":"x","steps":["true"]}"#;
        assert!(
            serde_json::from_str::<Spec>(text)
                .unwrap()
                .function
                .is_none()
        );
        let text = r#"{"function":{"name":"f","params":{"a":[1]},"queue":"q",
            "trace_context":{"traceparent":"x"}}}"#;
        let function = serde_json::from_str::<Spec>(text)
            .unwrap()
            .function
            .unwrap();
        assert_eq!(function.name.as_deref(), Some("f"));
        assert_eq!(function.queue.as_deref(), Some("q"));
        assert_eq!(function.trace_context.len(), 1);
    }
}
