//! A runner in Rust whose application has OpenTelemetry set up, for the tests of traces: where to,
//! its variables say.

use std::process::ExitCode;
use std::time::Duration;

use delta_runner::{Context, Failure, Runner};
use opentelemetry::global;
use opentelemetry::trace::{Span as _, Tracer as _};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::Value;

/// A span of the application's own, which must come below the call's.
fn step() {
    global::tracer("app").start("app.step").end();
}

/// Fails once, with words that belong to nobody else.
async fn later(_: Value, context: Context) -> Result<u32, Failure> {
    step();
    if context.attempt == 1 {
        return Err(Failure::retry("canary-message").after(Duration::from_millis(50)));
    }
    Ok(context.attempt)
}

fn later_blocking(_: Value, context: Context) -> Result<u32, Failure> {
    step();
    Ok(context.attempt)
}

async fn trace(_: Value, context: Context) -> Result<Value, Failure> {
    Ok(serde_json::to_value(context.trace)?)
}

#[tokio::main]
async fn main() -> ExitCode {
    let exporter = SpanExporter::builder().with_tonic().build();
    let exporter = exporter.expect("a collector is named");
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
    let provider = provider.build();
    global::set_tracer_provider(provider.clone());
    let code = Runner::new()
        .handle("later", later)
        .handle_blocking("later_blocking", later_blocking)
        .handle("trace", trace)
        .main()
        .await;
    let _ = tokio::task::spawn_blocking(move || provider.shutdown()).await;
    code
}
