//! What the agent tells of a trace (RQ-28): one span for every attempt, below what came with the
//! job, and above whatever carries the work out.
//!
//! Owns the spans `delta.call`, around the call of a function, and `delta.attempt`, around steps.
//! A job without a trace has one of its own, whose id is the run's: it is the same for every
//! attempt, on whichever agent.

use delta_shim::verdict::Outcome;
use delta_trace::context::carry;
use delta_trace::{Kind, Span, TraceContext};
use delta_wire::job_spec::FunctionSpec;

use crate::agent::SlotContext;
use crate::attempt::run::WorkEnd;
use crate::work::{Ended, Identity};

/// What programs look for that continue a trace.
const VARIABLE: &str = "TRACEPARENT";

/// An attempt whose trace goes on.
pub(crate) struct Traced {
    span: Option<Span>,
}

impl Traced {
    /// Around the call of a function, which is told to go on from here.
    pub fn call(context: &SlotContext, identity: &Identity, function: &mut FunctionSpec) -> Traced {
        let carrier = std::mem::take(&mut function.trace_context);
        let parent = TraceContext::of(&carrier);
        let tracer = &context.settings.tracer;
        let begun = tracer.begin("delta.call", Kind::Client, parent, own(identity));
        function.trace_context = carry(carrier, begun.context);
        let mut traced = Traced::of(begun.span, context, identity);
        if let Some(span) = &mut traced.span {
            span.set("delta.function", function.name.clone());
            span.set("delta.queue", function.queue.clone());
        }
        traced
    }

    /// Around steps, whose environment says where to go on, unless the job says it itself.
    pub fn steps(
        context: &SlotContext,
        identity: &Identity,
        env: &mut Vec<(String, String)>,
    ) -> Traced {
        let tracer = &context.settings.tracer;
        let begun = tracer.begin("delta.attempt", Kind::Internal, None, own(identity));
        if let Some(context) = begun.context
            && !env.iter().any(|(name, _)| name == VARIABLE)
        {
            env.push((VARIABLE.to_owned(), context.to_string()));
        }
        Traced::of(begun.span, context, identity)
    }

    fn of(mut span: Option<Span>, context: &SlotContext, identity: &Identity) -> Traced {
        if let Some(span) = &mut span {
            span.set("delta.run_id", identity.run_id.clone());
            span.set("delta.job_id", identity.job_id.clone());
            span.set("delta.job", identity.job_name.clone());
            span.set("delta.attempt", i64::from(identity.attempt));
            let epoch = i64::try_from(identity.lease_epoch).unwrap_or(i64::MAX);
            span.set("delta.lease_epoch", epoch);
            span.set("delta.agent", context.settings.name.clone());
        }
        Traced { span }
    }

    /// Which pool was asked.
    pub fn runner(&mut self, name: Option<&str>) {
        if let (Some(span), Some(name)) = (&mut self.span, name) {
            span.set("delta.runner", name.to_owned());
        }
    }

    /// How work ended, or why it was not begun.
    pub fn end_of(self, done: &Result<WorkEnd, Box<Ended>>) {
        match done {
            Ok(end) => self.end(&end.ended),
            Err(ended) => self.end(ended),
        }
    }

    /// How it ended: the outcome and its cause, and no word of the job's own.
    pub fn end(self, ended: &Ended) {
        let Some(mut span) = self.span else { return };
        let outcome = match ended.outcome {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed { .. } | Outcome::Signaled { .. } => "failed",
            Outcome::TimedOut => "timed_out",
            Outcome::Canceled => "canceled",
        };
        span.set("delta.outcome", outcome);
        if let Some(cause) = ended.cause {
            span.set("delta.cause", cause.name());
        }
        if ended.outcome != Outcome::Succeeded {
            span.failed(ended.cause.map_or(outcome, |cause| cause.name()));
        }
        span.end();
    }
}

/// The trace of a job that came with none.
fn own(identity: &Identity) -> u128 {
    let hex = identity.run_id.strip_prefix("run_").unwrap_or_default();
    u128::from_str_radix(hex, 16).unwrap_or(1).max(1)
}
