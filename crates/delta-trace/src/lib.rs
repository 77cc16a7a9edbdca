//! One trace from whoever enqueues a job to the handler that carries it out (RQ-28): W3C's trace
//! context, spans, and their way to a collector that speaks OTLP.
//!
//! Off unless it is configured, and then a [`Tracer`] is an empty box. What it is given is never
//! waited for: a collector that is slow or gone costs spans, which are counted, and nothing else.
//! A span says which job, which attempt, where and how it ended; parameters, results, messages of
//! errors, tokens and leases are never put into one.
//!
//! Reading order: [`context`] (what is handed on), [`settings`] (what is asked for), `sampler`,
//! `span` (what is told), `export` (how it gets away).

#![forbid(unsafe_code)]

pub mod context;
mod export;
mod sampler;
pub mod settings;
mod span;

pub use context::{Carrier, TraceContext};
pub use export::Counts;
pub use settings::{BadSetting, Settings};
pub use span::{Begun, Kind, Span, Tracer};
