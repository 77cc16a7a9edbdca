//! Spans: begun below what came, told what happened, and handed to the exporter at their end.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use opentelemetry::trace::{
    Event, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::context::TraceContext;
use crate::export::{self, Counts, Exporter};
use crate::sampler::Sampler;
use crate::settings::{BadSetting, Settings};

/// What happens in one span; more would be a log.
const MAX_EVENTS: usize = 32;

/// Makes spans, or does nothing: whether traces are configured is known here and nowhere else.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Inner>>);

struct Inner {
    sampler: Sampler,
    exporter: Exporter,
}

/// On which side of a message a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Answers a request.
    Server,
    /// Calls somebody and waits.
    Client,
    /// Neither.
    Internal,
}

/// What is to be handed on, and the span that is told what happens, where anybody wants it.
pub struct Begun {
    pub context: Option<TraceContext>,
    pub span: Option<Span>,
}

/// Something that takes time. One that is dropped instead of ended is told as failed.
pub struct Span {
    begun: Instant,
    /// Taken at the end.
    data: Option<Box<SpanData>>,
    tracer: Arc<Inner>,
}

impl Tracer {
    /// Makes none.
    pub fn off() -> Tracer {
        Tracer(None)
    }

    /// Begins to export; inside a runtime.
    pub fn start(settings: &Settings) -> Result<Tracer, BadSetting> {
        Ok(Tracer(Some(Arc::new(Inner {
            sampler: settings.sampler,
            exporter: export::start(settings)?,
        }))))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A span below `parent`, or the first of the trace `own` where there is none. What is not
    /// sampled is handed on as it came.
    pub fn begin(
        &self,
        name: &'static str,
        kind: Kind,
        parent: Option<TraceContext>,
        own: u128,
    ) -> Begun {
        let Some(inner) = &self.0 else {
            return Begun {
                context: parent,
                span: None,
            };
        };
        let trace = parent.map_or(own, |parent| parent.trace);
        let sampled = inner.sampler.keeps(parent, trace);
        if !sampled && parent.is_some_and(|parent| !parent.sampled) {
            return Begun {
                context: parent,
                span: None,
            };
        }
        let context = TraceContext {
            trace,
            span: fresh_id(),
            sampled,
        };
        let span = sampled.then(|| Span {
            begun: Instant::now(),
            data: Some(Box::new(data(name, kind, context, parent, inner))),
            tracer: Arc::clone(inner),
        });
        Begun {
            context: Some(context),
            span,
        }
    }

    /// How many spans were sent, and how many lost.
    pub fn counts(&self) -> Counts {
        self.0
            .as_ref()
            .map_or(Counts::default(), |it| it.exporter.counts())
    }

    /// Sends what is left, within a moment, and takes nothing more.
    pub async fn close(&self) {
        if let Some(inner) = &self.0 {
            inner.exporter.close().await;
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() {
            "Tracer(on)"
        } else {
            "Tracer(off)"
        })
    }
}

impl Span {
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(data) = &mut self.data {
            data.attributes.push(KeyValue::new(name, value));
        }
    }

    /// Something happened just now.
    pub fn event(&mut self, name: &'static str) {
        let at = self.now();
        if let Some(data) = &mut self.data {
            if data.events.events.len() == MAX_EVENTS {
                data.events.dropped_count += 1;
                return;
            }
            data.events.events.push(Event::new(name, at, Vec::new(), 0));
        }
    }

    /// It did not do what it was for, in one word.
    pub fn failed(&mut self, why: impl Into<String>) {
        if let Some(data) = &mut self.data {
            data.status = Status::error(why.into());
        }
    }

    /// It began at another time than it was made.
    pub fn began_at(&mut self, at: SystemTime) {
        if let Some(data) = &mut self.data {
            data.start_time = at;
        }
    }

    pub fn end(self) {
        let now = self.now();
        self.end_at(now);
    }

    pub fn end_at(mut self, at: SystemTime) {
        if let Some(mut data) = self.data.take() {
            data.end_time = at.max(data.start_time);
            self.tracer.exporter.take(*data);
        }
    }

    /// By the clock that only goes forward.
    fn now(&self) -> SystemTime {
        let start = self.data.as_ref().map(|data| data.start_time);
        start.map_or_else(SystemTime::now, |start| start + self.begun.elapsed())
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let now = self.now();
        if let Some(mut data) = self.data.take() {
            data.end_time = now;
            data.status = Status::error("given up");
            self.tracer.exporter.take(*data);
        }
    }
}

fn data(
    name: &'static str,
    kind: Kind,
    context: TraceContext,
    parent: Option<TraceContext>,
    inner: &Inner,
) -> SpanData {
    let now = SystemTime::now();
    SpanData {
        span_context: SpanContext::new(
            TraceId::from(context.trace),
            SpanId::from(context.span),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: SpanId::from(parent.map_or(0, |parent| parent.span)),
        parent_span_is_remote: parent.is_some(),
        span_kind: match kind {
            Kind::Server => SpanKind::Server,
            Kind::Client => SpanKind::Client,
            Kind::Internal => SpanKind::Internal,
        },
        name: name.into(),
        start_time: now,
        end_time: now,
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: inner.exporter.scope(),
    }
}

/// Never zero, which would be no id.
fn fresh_id() -> u64 {
    loop {
        match getrandom::u64() {
            Ok(0) => {}
            Ok(id) => return id,
            // Without randomness nothing else works either; a span is no reason to end.
            Err(_) => return 1,
        }
    }
}
