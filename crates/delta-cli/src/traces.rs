//! Where spans go: one flag, and OpenTelemetry's own variables.

use delta_trace::context::{TRACEPARENT, TRACESTATE, carry};
use delta_trace::settings::Program;
use delta_trace::{Carrier, Settings, TraceContext, Tracer};

use crate::exit::Exit;
use crate::failure::Failure;

/// Traces of jobs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Traces")]
pub struct Traces {
    /// Send traces to this collector, over OTLP (gRPC), such as http://127.0.0.1:4317
    ///
    /// Instead of OTEL_EXPORTER_OTLP_ENDPOINT. OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_HEADERS,
    /// OTEL_TRACES_SAMPLER and others of OpenTelemetry's variables count, too: docs/tracing.md.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
}

impl Traces {
    /// Begins to export, if that is asked for.
    pub fn start(&self, service: &str) -> Result<Tracer, Failure> {
        let program = Program {
            service,
            version: env!("CARGO_PKG_VERSION"),
            flag: ("--otlp-endpoint", self.otlp_endpoint.as_deref()),
        };
        let settings = Settings::read(program, |name| std::env::var(name).ok());
        let tracer = settings.and_then(|settings| match settings {
            Some(settings) => Tracer::start(&settings),
            None => Ok(Tracer::off()),
        });
        tracer.map_err(|bad| Failure::new(Exit::Usage, bad.to_string()).next(&bad.fix))
    }
}

/// The trace that whoever started this program is in, as programs tell each other.
pub fn of_environment() -> Carrier {
    let named = |name: &str| {
        let value = std::env::var(name.to_uppercase()).ok()?;
        Some((name.to_owned(), value))
    };
    let found = [TRACEPARENT, TRACESTATE].into_iter().filter_map(named);
    let found: Carrier = found.collect();
    let context = TraceContext::of(&found);
    // What the server would refuse is no reason not to call.
    carry(found, context)
}
