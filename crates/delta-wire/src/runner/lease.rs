//! Getting a lease and taking it up: Lease, LeaseGranted, AckLease, AckLeaseAck.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{
    CancelToken, LeaseToken, MAX_CAPABILITIES, MAX_CAPABILITY, MAX_URI, Message, id, printable, ts,
    wait,
};
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;
use crate::job_spec::RawJobSpec;
use crate::seconds::Seconds;

/// A runner asks for work and is willing to wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct Lease {
    pub runner_id: String,
    /// What the runner's machine is and has; matched against what jobs require (RP-11).
    pub capabilities: Vec<String>,
    /// How long the server may hold the request open. 0: answer at once.
    pub wait_seconds: Seconds,
}

impl Message for Lease {
    const TYPE: &'static str = "Lease";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        let tag = |it: Node<'_>| printable(it, MAX_CAPABILITY);
        Ok(Lease {
            runner_id: f.must("runner_id", id)?,
            capabilities: f.must("capabilities", |it| it.each(MAX_CAPABILITIES, tag))?,
            wait_seconds: f.may("wait_seconds", wait)?.unwrap_or(Seconds::ZERO),
        })
    }
}

/// A lease, and the work it is for (RP-23).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGranted {
    pub job_id: String,
    pub run_id: String,
    pub lease_id: LeaseToken,
    pub lease_ttl_seconds: Seconds,
    pub heartbeat_interval_seconds: Seconds,
    pub max_runtime_seconds: Seconds,
    pub spec: GrantedSpec,
    pub cancel_token: Option<CancelToken>,
    /// Extension (A72): which try of the job this is, from 1.
    pub attempt: Option<u32>,
    /// Extension (A60, A72): rises with every lease of the job, for fencing outside the server.
    pub lease_epoch: Option<u64>,
}

/// The work: inside the message, or where to fetch it. Exactly one (RP-24).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantedSpec {
    Embedded(RawJobSpec),
    Referenced(JobSpecRef),
}

/// Where a large spec is, and the hash its bytes must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobSpecRef {
    pub uri: String,
    pub sha256: String,
}

impl Message for LeaseGranted {
    const TYPE: &'static str = "LeaseGranted";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        let embedded = f.may("job_spec", RawJobSpec::from_node)?;
        let referenced = f.may("job_spec_ref", spec_ref)?;
        let spec = match (embedded, referenced) {
            (Some(spec), None) => GrantedSpec::Embedded(spec),
            (None, Some(reference)) => GrantedSpec::Referenced(reference),
            (None, None) => return Err(Invalid::missing("job_spec")),
            (Some(_), Some(_)) => {
                return Err(Invalid::field(
                    "job_spec_ref",
                    "is given beside job_spec; give one",
                ));
            }
        };
        let attempt = f.may("attempt", |it| it.whole(1, u32::MAX.into()))?;
        Ok(LeaseGranted {
            job_id: f.must("job_id", id)?,
            run_id: f.must("run_id", id)?,
            lease_id: f.must("lease_id", LeaseToken::read)?,
            lease_ttl_seconds: f.must("lease_ttl_seconds", Node::positive_seconds)?,
            heartbeat_interval_seconds: f
                .must("heartbeat_interval_seconds", Node::positive_seconds)?,
            max_runtime_seconds: f.must("max_runtime_seconds", Node::positive_seconds)?,
            spec,
            cancel_token: f.may("cancel_token", CancelToken::read)?,
            attempt: attempt.and_then(|it| u32::try_from(it).ok()),
            lease_epoch: f.may("lease_epoch", Node::count)?,
        })
    }
}

/// By hand, because the work is one of two fields and its text must pass through untouched.
impl Serialize for LeaseGranted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", Self::TYPE)?;
        map.serialize_entry("job_id", &self.job_id)?;
        map.serialize_entry("run_id", &self.run_id)?;
        map.serialize_entry("lease_id", &self.lease_id)?;
        map.serialize_entry("lease_ttl_seconds", &self.lease_ttl_seconds)?;
        map.serialize_entry(
            "heartbeat_interval_seconds",
            &self.heartbeat_interval_seconds,
        )?;
        map.serialize_entry("max_runtime_seconds", &self.max_runtime_seconds)?;
        if let Some(attempt) = self.attempt {
            map.serialize_entry("attempt", &attempt)?;
        }
        if let Some(epoch) = self.lease_epoch {
            map.serialize_entry("lease_epoch", &epoch)?;
        }
        match &self.spec {
            GrantedSpec::Embedded(spec) => map.serialize_entry("job_spec", spec)?,
            GrantedSpec::Referenced(it) => map.serialize_entry("job_spec_ref", it)?,
        }
        if let Some(token) = &self.cancel_token {
            map.serialize_entry("cancel_token", token)?;
        }
        map.end()
    }
}

fn spec_ref(node: Node<'_>) -> Result<JobSpecRef, Invalid> {
    let mut fields = node.object()?;
    let uri = fields.must("uri", |it| printable(it, MAX_URI))?;
    let sha256 = fields.must("sha256", Node::sha256)?;
    fields.close();
    Ok(JobSpecRef { uri, sha256 })
}

/// The runner has the lease and starts (RP-25).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct AckLease {
    pub job_id: String,
    pub lease_id: LeaseToken,
    pub runner_id: String,
    /// As the runner's clock says; information only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<String>,
}

impl Message for AckLease {
    const TYPE: &'static str = "AckLease";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        Ok(AckLease {
            job_id: f.must("job_id", id)?,
            lease_id: f.must("lease_id", LeaseToken::read)?,
            runner_id: f.must("runner_id", id)?,
            accepted_at: f.may("accepted_at", ts)?,
        })
    }
}

/// The answer to AckLease: from now on the lease lives by heartbeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct AckLeaseAck {
    pub accepted: bool,
    pub lease_ttl_seconds: Seconds,
}

impl Message for AckLeaseAck {
    const TYPE: &'static str = "AckLeaseAck";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        Ok(AckLeaseAck {
            accepted: f.must("accepted", Node::boolean)?,
            lease_ttl_seconds: f.must("lease_ttl_seconds", Node::positive_seconds)?,
        })
    }
}
