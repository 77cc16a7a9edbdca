//! The job spec of a grant: inside it, or fetched from where it points, and whether this agent can
//! carry it out.

use std::borrow::Cow;
use std::time::Duration;

use delta_core::Cause;
use delta_wire::JobSpec;
use delta_wire::job_spec::WorkKind;
use delta_wire::runner::{GrantedSpec, JobSpecRef, LeaseGranted, LeaseToken};
use tokio::time::sleep;

use crate::backoff::{Backoff, entropy};
use crate::client::{CallError, Client};

/// Tries to fetch a spec. With these waits they last a few seconds; after that another agent may
/// do better.
const MAX_TRIES: u32 = 6;
const RETRY_BASE: Duration = Duration::from_millis(200);
const RETRY_CAP: Duration = Duration::from_secs(3);

/// Why there is nothing to execute.
pub(crate) struct Unusable {
    pub cause: Cause,
    pub summary: String,
}

/// Reads the spec and refuses what this agent does not execute.
pub(crate) async fn read(client: &Client, granted: &LeaseGranted) -> Result<JobSpec, Unusable> {
    let text = match &granted.spec {
        GrantedSpec::Embedded(spec) => Cow::Borrowed(spec.as_text().as_bytes()),
        GrantedSpec::Referenced(reference) => {
            Cow::Owned(fetch(client, reference, &granted.lease_id).await?)
        }
    };
    let spec = JobSpec::parse(&text)
        .map_err(|problem| spec_error(format!("the job spec cannot be read: {problem}")))?;
    if spec.work() != WorkKind::Steps {
        let kind = spec.work().as_str();
        return Err(spec_error(format!(
            "this agent executes steps, the job has {kind}"
        )));
    }
    if spec.image.is_some() {
        let summary = "this agent executes processes, the job needs an image";
        return Err(spec_error(summary.to_owned()));
    }
    Ok(spec)
}

async fn fetch(
    client: &Client,
    reference: &JobSpecRef,
    lease: &LeaseToken,
) -> Result<Vec<u8>, Unusable> {
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    let mut tries = 0;
    loop {
        tries += 1;
        let problem = match client.job_spec(reference, lease).await {
            Ok(bytes) => return Ok(bytes.to_vec()),
            Err(problem) => problem,
        };
        let retry_after = match &problem {
            CallError::Busy { retry_after, .. } => Some(*retry_after),
            CallError::Unreachable(_) | CallError::Credential(_) => Some(None),
            // Asking again would bring the same.
            _ => None,
        };
        match retry_after {
            Some(retry_after) if tries < MAX_TRIES => {
                sleep(backoff.next(retry_after, entropy())).await;
            }
            _ => {
                let summary = format!("the job spec was not fetched: {problem}");
                return Err(Unusable {
                    cause: Cause::StartUp,
                    summary,
                });
            }
        }
    }
}

fn spec_error(summary: String) -> Unusable {
    Unusable {
        cause: Cause::SpecError,
        summary,
    }
}
