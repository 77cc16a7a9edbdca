//! What ends a call before its time (RQ-39 … RQ-44).

use serde::Serialize;
use serde_json::value::RawValue;

use crate::PROTOCOL_VERSION;
use crate::member;
use crate::request::check_version;

/// Ends the work of a job, or one call of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CancelRequest {
    pub job_id: String,
    /// Only this call; all of the job when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The caller ends the process itself, whatever the runner makes of this.
    pub hard_kill: bool,
}

#[derive(Serialize)]
pub(crate) struct Written<'a> {
    protocol_version: &'static str,
    #[serde(flatten)]
    cancel: &'a CancelRequest,
}

impl CancelRequest {
    pub(crate) fn written(&self) -> Written<'_> {
        Written {
            protocol_version: PROTOCOL_VERSION,
            cancel: self,
        }
    }

    /// Nothing when it cannot be meant for anybody: a cancel has no answer, so there is nobody to
    /// tell.
    pub(crate) fn read(payload: &RawValue) -> Option<CancelRequest> {
        let members = member::object(payload, "payload").ok()?;
        check_version(&members).ok()?;
        let hard_kill = member::given(&members, "hard_kill").and_then(member::read);
        Some(CancelRequest {
            job_id: member::text(&members, "job_id").ok()?,
            request_id: member::may_text(&members, "request_id").ok()?,
            hard_kill: hard_kill.unwrap_or(false),
        })
    }
}
