//! What a runner is asked to do (RQ-18 … RQ-28).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::PROTOCOL_VERSION;
use crate::member::{self, Members, Wrong};
use crate::outcome::{ErrorInfo, Outcome, Status};

/// One call of a function.
#[derive(Clone, Debug, Serialize)]
pub struct ExecutionRequest {
    pub request_id: String,
    pub job_id: String,
    pub function_name: String,
    /// An object, as it was written.
    pub params: Box<RawValue>,
    pub context: Context,
}

/// What a function may know of its call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Context {
    pub job_id: String,
    /// From 1.
    pub attempt: u32,
    pub enqueue_time: Timestamp,
    pub queue_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What continues the producer's trace. What is no text in it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Grows with every lease of the job: a store that keeps the largest refuses late writers.
    /// Absent where the caller has no leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_epoch: Option<u64>,
}

/// A request that cannot be carried out, and what of it could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    pub request_id: Option<String>,
    pub job_id: Option<String>,
    /// What is wrong with it, in a sentence.
    pub why: String,
}

impl RefusedRequest {
    /// The answer to it; none where it is not known what to answer.
    pub fn outcome(&self) -> Option<Outcome> {
        Some(Outcome {
            request_id: self.request_id.clone()?,
            job_id: self.job_id.clone().unwrap_or_else(|| "unknown".to_owned()),
            status: Status::Error,
            result: None,
            error: Some(ErrorInfo::new(self.why.clone())),
            retry_after_seconds: None,
        })
    }
}

/// Everything of a request as it is written.
#[derive(Serialize)]
pub(crate) struct Written<'a> {
    protocol_version: &'static str,
    #[serde(flatten)]
    request: &'a ExecutionRequest,
}

impl ExecutionRequest {
    pub(crate) fn written(&self) -> Written<'_> {
        Written {
            protocol_version: PROTOCOL_VERSION,
            request: self,
        }
    }

    pub(crate) fn read(payload: &RawValue) -> Result<ExecutionRequest, RefusedRequest> {
        let members = member::object(payload, "payload").map_err(|why| RefusedRequest {
            request_id: None,
            job_id: None,
            why,
        })?;
        let name = |name| member::may_text(&members, name).ok().flatten();
        read(&members).map_err(|why| RefusedRequest {
            request_id: name("request_id").filter(|id| !id.is_empty()),
            job_id: name("job_id"),
            why,
        })
    }
}

fn read(members: &Members<'_>) -> Result<ExecutionRequest, Wrong> {
    check_version(members)?;
    let job_id = member::text(members, "job_id")?;
    let params = members.get("params").ok_or("params is missing")?;
    if !params.get().starts_with('{') {
        return Err("params must be an object".to_owned());
    }
    let context = member::given(members, "context").ok_or("context is missing")?;
    let context = context_of(&member::object(context, "context")?)
        .map_err(|wrong| format!("context.{wrong}"))?;
    if context.job_id != job_id {
        return Err("context.job_id is not job_id".to_owned());
    }
    Ok(ExecutionRequest {
        request_id: member::text(members, "request_id")?,
        job_id,
        function_name: member::text(members, "function_name")?,
        params: (*params).to_owned(),
        context,
    })
}

/// RQ-1, RQ-19: the very text, and nothing for granted.
pub(crate) fn check_version(members: &Members<'_>) -> Result<(), Wrong> {
    let version = members
        .get("protocol_version")
        .and_then(|raw| member::read::<String>(raw));
    if version.as_deref() == Some(PROTOCOL_VERSION) {
        Ok(())
    } else {
        Err(format!(
            "Unsupported protocol version: this runner speaks \"{PROTOCOL_VERSION}\""
        ))
    }
}

fn context_of(members: &Members<'_>) -> Result<Context, Wrong> {
    let attempt = members
        .get("attempt")
        .and_then(|raw| member::read::<u32>(raw));
    let attempt = attempt.filter(|attempt| *attempt > 0);
    let enqueued = member::may_instant(members, "enqueue_time")?;
    Ok(Context {
        job_id: member::text(members, "job_id")?,
        attempt: attempt.ok_or("attempt must be a number from 1")?,
        enqueue_time: enqueued.ok_or("enqueue_time is missing")?,
        queue_name: member::text(members, "queue_name")?,
        deadline: member::may_instant(members, "deadline")?,
        trace_context: trace(members)?,
        worker_id: member::may_text(members, "worker_id")?,
        lease_epoch: member::given(members, "lease_epoch").and_then(member::read),
    })
}

/// RQ-28: what is malformed in it is left out, and stops nothing.
fn trace(members: &Members<'_>) -> Result<Option<BTreeMap<String, String>>, Wrong> {
    let Some(raw) = member::given(members, "trace_context") else {
        return Ok(None);
    };
    let Ok(carrier) = member::object(raw, "trace_context") else {
        return Ok(None);
    };
    let texts = carrier.into_iter().filter_map(|(name, raw)| {
        let value = member::read::<String>(raw)?;
        Some((name.into_owned(), value))
    });
    Ok(Some(texts.collect()))
}
