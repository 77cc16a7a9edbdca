//! Mirrors of facts, version 1. A job is named by its number and a run not at all: both follow from
//! the record, which names its run once.

use std::sync::Arc;

use delta_core::attempt::{AttemptCancel, AttemptEvent, Report};
use delta_core::fact::{Ending, Grant};
use delta_core::lease::{Closing, LeaseEvent, Revocation};
use delta_core::run::{RunCancel, RunEvent, RunHeader, RunSettings};
use delta_core::{
    Cause, Digest, Fact, Job, JobId, Millis, Place, Policy, Resolution, Run, RunId, RunState, Span,
    Text,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::part::{
    self, AttemptCancelPart, ReportPart, RunCancelPart, RunHeaderPart, RunSettingsPart,
};
use super::primitives::{self, is_default};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Fact", rename_all = "snake_case")]
pub enum FactPart {
    RunCreated(#[serde(with = "boxed_run")] Box<Run>),
    JobCreated(#[serde(with = "boxed_job")] Box<Job>),
    RunMoved {
        #[serde(with = "primitives::run_event")]
        event: RunEvent,
        #[serde(
            with = "primitives::cause::opt",
            default,
            skip_serializing_if = "Option::is_none"
        )]
        cause: Option<Cause>,
    },
    RunConfigured(#[serde(with = "RunSettingsPart")] RunSettings),
    RunCancelAsked(#[serde(with = "RunCancelPart")] RunCancel),
    NeedMet {
        job: u32,
    },
    LineEntered {
        job: u32,
    },
    TurnTaken {
        job: u32,
    },
    AttemptCreated {
        job: u32,
        index: u32,
        #[serde(with = "primitives::millis")]
        not_before: Millis,
    },
    AttemptMoved {
        job: u32,
        index: u32,
        #[serde(with = "primitives::attempt_event")]
        event: AttemptEvent,
        #[serde(
            with = "primitives::cause::opt",
            default,
            skip_serializing_if = "Option::is_none"
        )]
        cause: Option<Cause>,
    },
    CancelAsked {
        job: u32,
        index: u32,
        #[serde(with = "AttemptCancelPart")]
        cancel: AttemptCancel,
    },
    Reported {
        job: u32,
        index: u32,
        #[serde(with = "boxed_report")]
        report: Box<Report>,
    },
    LeaseGranted {
        job: u32,
        index: u32,
        #[serde(with = "boxed_grant")]
        grant: Box<Grant>,
    },
    LeaseMoved {
        job: u32,
        index: u32,
        #[serde(with = "primitives::lease_event")]
        event: LeaseEvent,
        #[serde(with = "EndingPart", default, skip_serializing_if = "is_default")]
        ending: Ending,
    },
    Spent {
        job: u32,
        index: u32,
        losses: u32,
        dispatches: u32,
    },
    JobResolved {
        job: u32,
        #[serde(with = "primitives::resolution")]
        resolution: Resolution,
        #[serde(
            with = "primitives::cause::opt",
            default,
            skip_serializing_if = "Option::is_none"
        )]
        cause: Option<Cause>,
    },
    LeaseClamped {
        job: u32,
        index: u32,
        #[serde(with = "primitives::millis")]
        expires_at: Millis,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Run")]
struct RunPart {
    #[serde(skip, default = "no_run")]
    id: RunId,
    #[serde(with = "RunHeaderPart")]
    header: RunHeader,
    #[serde(with = "primitives::run_state")]
    state: RunState,
    #[serde(
        with = "primitives::run_state::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    outcome: Option<RunState>,
    #[serde(
        with = "primitives::cause::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    cause: Option<Cause>,
    #[serde(
        with = "part::run_cancel",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    cancel: Option<RunCancel>,
    #[serde(with = "primitives::millis")]
    created_at: Millis,
    #[serde(
        with = "primitives::millis::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    queued_at: Option<Millis>,
    #[serde(
        with = "primitives::millis::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    started_at: Option<Millis>,
    #[serde(
        with = "primitives::millis::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    ended_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "is_default")]
    jobs: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    live_jobs: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    required_failed: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    required_canceled: u32,
    #[serde(with = "part::place", default, skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Job")]
struct JobPart {
    #[serde(with = "number")]
    id: JobId,
    #[serde(with = "primitives::text")]
    name: Text,
    #[serde(with = "part::policy")]
    policy: Arc<Policy>,
    #[serde(with = "primitives::digest")]
    spec: Digest,
    #[serde(with = "numbers", default, skip_serializing_if = "no_numbers")]
    dependents: Arc<[u32]>,
    #[serde(default, skip_serializing_if = "is_default")]
    waiting_on: u32,
    attempts: u32,
    #[serde(
        with = "primitives::resolution::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    resolution: Option<Resolution>,
    #[serde(
        with = "primitives::cause::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    cause: Option<Cause>,
    #[serde(
        with = "primitives::millis::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    ended_at: Option<Millis>,
    #[serde(
        with = "primitives::job_id::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    kept: Option<JobId>,
    #[serde(with = "part::place", default, skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Grant")]
struct GrantPart {
    epoch: u64,
    number: u32,
    #[serde(with = "primitives::digest")]
    token: Digest,
    #[serde(with = "primitives::text")]
    principal: Text,
    #[serde(with = "primitives::text")]
    runner: Text,
    #[serde(with = "primitives::millis")]
    ack_by: Millis,
    #[serde(with = "primitives::span")]
    ttl: Span,
    #[serde(with = "primitives::millis")]
    expires_at: Millis,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Ending")]
struct EndingPart {
    #[serde(
        with = "primitives::revocation::opt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    revocation: Option<Revocation>,
    #[serde(
        with = "part::closing",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    closing: Option<Closing>,
}

/// Stands in until the record's own run is put in its place.
fn no_run() -> RunId {
    RunId(0)
}

mod number {
    use super::*;

    pub fn serialize<S: Serializer>(value: &JobId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(value.n)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<JobId, D::Error> {
        u32::deserialize(from).map(|n| no_run().job(n))
    }
}

mod numbers {
    use super::*;

    pub fn serialize<S: Serializer>(value: &Arc<[u32]>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(value.iter())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[u32]>, D::Error> {
        Vec::<u32>::deserialize(from).map(Into::into)
    }
}

fn no_numbers(numbers: &Arc<[u32]>) -> bool {
    numbers.is_empty()
}

macro_rules! boxed {
    ($module:ident, $type:ty, $part:ty) => {
        mod $module {
            use super::*;

            pub fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                <$part>::serialize(value, to)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Box<$type>, D::Error> {
                <$part>::deserialize(from).map(Box::new)
            }
        }
    };
}

boxed!(boxed_run, Run, RunPart);
boxed!(boxed_job, Job, JobPart);
boxed!(boxed_report, Report, ReportPart);
boxed!(boxed_grant, Grant, GrantPart);

/// Facts written in order.
pub mod list {
    use super::*;

    #[derive(Serialize)]
    struct Shown<'a>(#[serde(with = "FactPart")] &'a Fact);

    #[derive(Deserialize)]
    struct Read(#[serde(with = "FactPart")] Fact);

    pub fn serialize<S: Serializer>(facts: &[Fact], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(facts.iter().map(Shown))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Fact>, D::Error> {
        let facts = Vec::<Read>::deserialize(from)?;
        Ok(facts.into_iter().map(|Read(fact)| fact).collect())
    }
}

/// Puts the record's run where the encoding left it out.
pub fn place(fact: &mut Fact, run: RunId) {
    match fact {
        Fact::RunCreated(created) => created.id = run,
        Fact::JobCreated(job) => job.id.run = run,
        _ => {}
    }
}
