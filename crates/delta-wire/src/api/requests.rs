//! The small requests: cancel and rerun.

use serde::Serialize;
use utoipa::ToSchema;

use crate::fields::{Fields, Node, read_text};
use crate::invalid::{Invalid, Problems};

/// Bytes of a reason a person gives; what is beyond is cut off.
const MAX_REASON_BYTES: usize = 512;
/// Characters of a job's name or id.
pub(crate) const MAX_JOB: usize = 128;

/// `POST …/cancel`. An empty body says the same as `{}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CancelRequest {
    /// Shown wherever the cancel is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl CancelRequest {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let reason = p.note(f.may("reason", |it| it.cut(MAX_REASON_BYTES)));
            Some(CancelRequest { reason: reason? })
        })
    }
}

/// `POST /api/v1/runs/{id}/rerun`. An empty body says the same as `{}`: everything again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RerunRequest {
    /// Only the jobs that did not succeed, and those that need them. The others are kept.
    #[schema(required = false, default = false)]
    pub failed_only: bool,
    /// Only this job, by name or id, those that need it, and what it needs that did not end well.
    /// The others are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

impl RerunRequest {
    pub fn parse(body: &[u8]) -> Result<Self, Problems> {
        strict(body, |f, p| {
            let failed_only = p
                .note(f.may("failed_only", Node::boolean))?
                .unwrap_or(false);
            let job = p.note(f.may("job", |it| it.text(MAX_JOB)))?;
            if failed_only && job.is_some() {
                p.push(Invalid::field(
                    "job",
                    "is given beside failed_only; give one",
                ));
            }
            Some(RerunRequest { failed_only, job })
        })
    }
}

/// Reads an object strictly. A body of nothing is an object of nothing.
pub(super) fn strict<T>(
    body: &[u8],
    read: impl FnOnce(&mut Fields<'_>, &mut Problems) -> Option<T>,
) -> Result<T, Problems> {
    let body = if body.trim_ascii().is_empty() {
        b"{}"
    } else {
        body
    };
    let mut problems = Problems::new();
    let outcome = read_text(body, |node| {
        let mut fields = node.object()?;
        let value = read(&mut fields, &mut problems);
        fields.refuse_unknown(&mut problems);
        Ok(value)
    });
    let value = problems.note(outcome).and_then(|(value, _)| value);
    value.filter(|_| problems.is_empty()).ok_or(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_body_asks_for_the_plain_thing() {
        assert_eq!(CancelRequest::parse(b""), Ok(CancelRequest::default()));
        assert_eq!(RerunRequest::parse(b" \n"), Ok(RerunRequest::default()));
    }

    // A71
    #[test]
    fn a_slip_is_answered_with_the_name_that_was_meant() {
        let problems = RerunRequest::parse(br#"{"failed":true,"jobb":"a"}"#).unwrap_err();
        assert!(
            problems
                .to_string()
                .contains("jobb: is not known; did you mean `job`?")
        );
    }
}
