//! Spans named `rrq.runner` that continue the producer's trace (RQ-28), where the application has
//! OpenTelemetry set up.
//!
//! Owns the only use of `opentelemetry`, of which it needs no more than the interface: the feature
//! `otel` brings it, and without a provider of the application's a span is nothing.

use std::collections::BTreeMap;
use std::future::Future;

use delta_runner_protocol::{ExecutionRequest, Outcome, Status as Answered};
use opentelemetry::trace::{
    FutureExt as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags,
    TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue, global};

/// One call, current while its function runs, so that spans of the function's own are below it.
#[derive(Clone)]
pub(crate) struct Span(Context);

impl Span {
    pub fn begin(request: &ExecutionRequest) -> Span {
        let none = BTreeMap::new();
        let carrier = request.context.trace_context.as_ref().unwrap_or(&none);
        let above = match parent(carrier) {
            Some(parent) => Context::new().with_remote_span_context(parent),
            None => Context::new(),
        };
        let tracer = global::tracer("delta_runner");
        let builder = tracer
            .span_builder("rrq.runner")
            .with_kind(SpanKind::Consumer)
            .with_attributes(attributes(request));
        let span = tracer.build_with_context(builder, &above);
        Span(above.with_span(span))
    }

    /// The one that is current here.
    pub fn current() -> Span {
        Span(Context::current())
    }

    pub fn within<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        work.with_context(self.0.clone())
    }

    /// Does the work of a thread of its own.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _current = self.0.clone().attach();
        work()
    }

    pub fn end(self, outcome: &Outcome) {
        let status = match outcome.status {
            Answered::Success => "success",
            Answered::Retry => "retry",
            Answered::Timeout => "timeout",
            Answered::Error => "error",
        };
        let span = self.0.span();
        span.set_attribute(KeyValue::new("rrq.status", status));
        if outcome.status != Answered::Success {
            span.set_status(Status::error(status));
        }
        span.end();
    }
}

/// The current trace in W3C's words, to be handed on with a call; empty where there is none.
pub fn current_trace() -> BTreeMap<String, String> {
    let context = Context::current();
    let span = context.span().span_context().clone();
    let mut carrier = BTreeMap::new();
    if span.is_valid() {
        let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags());
        let parent = format!("00-{trace}-{id}-{:02x}", flags & TraceFlags::SAMPLED);
        carrier.insert("traceparent".to_owned(), parent);
        let state = span.trace_state().header();
        if !state.is_empty() {
            carrier.insert("tracestate".to_owned(), state);
        }
    }
    carrier
}

/// What is malformed is read as nothing: the trace begins here.
fn parent(carrier: &BTreeMap<String, String>) -> Option<SpanContext> {
    let mut parts = carrier.get("traceparent")?.split('-');
    let mut number = |digits: usize| {
        let part = parts.next().filter(|part| part.len() == digits)?;
        let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let all = part.bytes().all(lower);
        u128::from_str_radix(part, 16).ok().filter(|_| all)
    };
    let (version, trace, span, flags) = (number(2)?, number(32)?, number(16)?, number(2)?);
    if version == 0xff || (version == 0 && parts.next().is_some()) {
        return None;
    }
    let state = carrier
        .get("tracestate")
        .and_then(|carrier| carrier.parse().ok());
    let context = SpanContext::new(
        TraceId::from(trace),
        SpanId::from(u64::try_from(span).ok()?),
        TraceFlags::new(flags as u8 & 1),
        true,
        state.unwrap_or(TraceState::NONE),
    );
    context.is_valid().then_some(context)
}

fn attributes(request: &ExecutionRequest) -> Vec<KeyValue> {
    let context = &request.context;
    let mut all = vec![
        KeyValue::new("rrq.job_id", request.job_id.clone()),
        KeyValue::new("rrq.function_name", request.function_name.clone()),
        KeyValue::new("rrq.queue_name", context.queue_name.clone()),
        KeyValue::new("rrq.attempt", i64::from(context.attempt)),
    ];
    let worker = context.worker_id.clone();
    all.extend(worker.map(|worker| KeyValue::new("rrq.worker_id", worker)));
    let epoch = context
        .lease_epoch
        .and_then(|lease_epoch| i64::try_from(lease_epoch).ok());
    all.extend(epoch.map(|epoch| KeyValue::new("delta.lease_epoch", epoch)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carrier(text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("traceparent".to_owned(), text.to_owned())])
    }

    // RQ-28
    #[test]
    fn a_trace_goes_on_and_what_is_malformed_is_nothing() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let above = Context::new().with_remote_span_context(parent(&carrier(good)).unwrap());
        let _current = above.attach();
        assert_eq!(current_trace(), carrier(good));
        for bad in [
            "",
            "00-a-b-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(parent(&carrier(bad)), None, "{bad:?}");
        }
    }
}
