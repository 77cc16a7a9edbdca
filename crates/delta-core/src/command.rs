//! What can be asked of the core, by whom, and what it answers. All four ways in map to these.

use crate::attempt::{Progress, Report};
use crate::cause::Cause;
use crate::id::{AttemptId, JobId, LeaseKey, RunId};
use crate::job::Resolution;
use crate::lease::{Revocation, Stale};
use crate::policy::Policy;
use crate::rights::{Barred, Speaker};
use crate::run::{RunHeader, RunSettings};
use crate::settings::Settings;
use crate::time::{Millis, Span};
use crate::{Digest, Text};

/// The moment and the circumstances of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// When the message was fully read: a long queue never expires live work.
    pub now: Millis,
    pub settings: &'a Settings,
    /// Fresh randomness for jitter.
    pub entropy: u64,
    /// Leases are not judged expired before this moment: the operator's start-up grace.
    pub lease_floor: Millis,
}

/// A job of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewJob {
    pub name: Text,
    pub policy: Policy,
    pub spec: Digest,
    /// It ended in an earlier run and is not run again.
    pub kept: Option<Kept>,
}

/// How a job ended in the run that is run again (SM-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    /// The one that was executed.
    pub job: JobId,
    pub resolution: Resolution,
    pub cause: Option<Cause>,
}

/// A run to create, with its jobs or with planning to come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewRun {
    pub id: RunId,
    pub header: RunHeader,
    /// `None`: a planner will answer later.
    pub jobs: Option<Vec<NewJob>>,
}

/// Proof of holding a lease, as a message carries it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseProof {
    pub key: LeaseKey,
    /// SHA-256 of the token.
    pub token: Digest,
    /// Who the connection proved to be.
    pub principal: Text,
    pub runner: Text,
    pub speaker: Speaker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    Succeeded,
    Failed,
    TimedOut,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    CreateRun(Box<NewRun>),
    /// The planner's answer; no jobs means that conditions left all of them out.
    Plan {
        run: RunId,
        jobs: Vec<NewJob>,
        /// What it says about the run itself; nothing when absent.
        settings: Option<RunSettings>,
    },
    FailPlan {
        run: RunId,
        cause: Cause,
    },
    /// Give a queued attempt, or again the one this runner has not acknowledged.
    Grant {
        attempt: AttemptId,
        principal: Text,
        runner: Text,
        token: Digest,
        epoch: u64,
    },
    AckLease {
        proof: LeaseProof,
        job: JobId,
    },
    Heartbeat {
        proof: LeaseProof,
        seq: Option<u64>,
        progress: Progress,
        uploading: bool,
    },
    Complete {
        proof: LeaseProof,
        digest: Digest,
        status: Status,
        cause: Option<Cause>,
        report: Box<Report>,
    },
    CancelAck {
        proof: LeaseProof,
        digest: Digest,
        report: Box<Report>,
    },
    /// The holder will not begin.
    Decline {
        proof: LeaseProof,
    },
    CancelRun {
        run: RunId,
        cause: Cause,
        by: Text,
    },
    CancelJob {
        job: JobId,
        cause: Cause,
        by: Text,
    },
    /// See whether it is this one's turn in its group, or whether a newer one ends it. Number 0 of
    /// a run is the run itself.
    TakeTurn {
        member: JobId,
    },
    /// Take a live lease back (A17).
    Revoke {
        lease: LeaseKey,
        why: Revocation,
    },
    /// Look whether anything of the attempt is due.
    AttemptDue {
        attempt: AttemptId,
    },
    RunDue {
        run: RunId,
    },
    /// Nobody will ever take it: a run that still waits fails for this cause.
    GiveUp {
        run: RunId,
        cause: Cause,
    },
    /// The outcome was published (R11), or a dead letter put aside.
    Report {
        run: RunId,
    },
    /// After a start: no lease outlives now + ttl.
    Clamp {
        attempt: AttemptId,
    },
}

impl Command {
    pub fn name(&self) -> &'static str {
        match self {
            Command::CreateRun(_) => "create_run",
            Command::Plan { .. } => "plan",
            Command::FailPlan { .. } => "fail_plan",
            Command::Grant { .. } => "grant",
            Command::AckLease { .. } => "ack_lease",
            Command::Heartbeat { .. } => "heartbeat",
            Command::Complete { .. } => "complete",
            Command::CancelAck { .. } => "cancel_ack",
            Command::Decline { .. } => "decline",
            Command::CancelRun { .. } => "cancel_run",
            Command::CancelJob { .. } => "cancel_job",
            Command::TakeTurn { .. } => "take_turn",
            Command::Revoke { .. } => "revoke",
            Command::AttemptDue { .. } => "attempt_due",
            Command::RunDue { .. } => "run_due",
            Command::GiveUp { .. } => "give_up",
            Command::Report { .. } => "report",
            Command::Clamp { .. } => "clamp",
        }
    }

    /// The run it touches: the unit of locking.
    pub fn run(&self) -> RunId {
        match self {
            Command::CreateRun(new) => new.id,
            Command::Plan { run, .. }
            | Command::FailPlan { run, .. }
            | Command::CancelRun { run, .. }
            | Command::RunDue { run }
            | Command::GiveUp { run, .. }
            | Command::Report { run } => *run,
            Command::Grant { attempt, .. }
            | Command::AttemptDue { attempt }
            | Command::Clamp { attempt } => attempt.run(),
            Command::AckLease { proof, .. }
            | Command::Heartbeat { proof, .. }
            | Command::Complete { proof, .. }
            | Command::CancelAck { proof, .. }
            | Command::Decline { proof } => proof.key.attempt.run(),
            Command::CancelJob { job, .. } => job.run,
            Command::TakeTurn { member } => member.run,
            Command::Revoke { lease, .. } => lease.attempt.run(),
        }
    }

    /// Who stands behind it, for the record.
    pub fn actor(&self) -> Text {
        match self {
            Command::CreateRun(new) => new.header.created_by.clone(),
            Command::Grant { principal, .. } => principal.clone(),
            Command::AckLease { proof, .. }
            | Command::Heartbeat { proof, .. }
            | Command::Complete { proof, .. }
            | Command::CancelAck { proof, .. }
            | Command::Decline { proof } => proof.principal.clone(),
            Command::CancelRun { by, .. } | Command::CancelJob { by, .. } => by.clone(),
            _ => "server".into(),
        }
    }
}

/// The answer to a command that was understood. Stale is an expected answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The run, and whether an earlier request under the same key had made it.
    Created {
        run: RunId,
        replayed: bool,
    },
    Granted {
        lease: LeaseKey,
        number: u32,
        ttl: Span,
        max_runtime: Span,
    },
    Acknowledged {
        ttl: Span,
    },
    Renewed {
        ttl: Span,
        cancel: Option<CancelNotice>,
    },
    Completed,
    /// A cancel was committed first: the result is kept, the attempt is CANCELED.
    CompletedAfterCancel,
    CancelAcknowledged,
    /// Refused without a change: the lease was never acknowledged (A3, A4).
    NotAcknowledged,
    /// Refused without a change: nobody asked for a cancel (RP-40).
    CancelNotRequested,
    Stale(Stale),
    /// Done, or already so.
    Done {
        changed: bool,
    },
}

/// What a holder is told about a cancel of its attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CancelNotice {
    pub cause: Cause,
    /// Time left before the server ends it without the holder.
    pub remaining: Span,
}

/// A command that cannot be carried out. No state changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    NoSuchRun(RunId),
    NoSuchJob(JobId),
    NoSuchAttempt(AttemptId),
    /// The run exists already under this id.
    RunExists(RunId),
    /// The idempotency key was used with another request.
    KeyReused(RunId),
    /// The lease belongs to another runner of the same principal (RP-10).
    RunnerMismatch,
    /// Whoever speaks is not the agent that the lease is bound to, or is so no more.
    Barred(Barred),
    /// The message names another job than its lease does (RP-25).
    JobMismatch,
    /// The runner holds an active lease (RP-9, A67).
    RunnerBusy(AttemptId),
    /// The attempt cannot be granted now.
    NotQueued(AttemptId),
    /// The state does not know this command.
    WrongState(String),
    /// A plan that contradicts itself.
    BadPlan(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::NoSuchRun(id) => write!(f, "no run {id}"),
            Refusal::NoSuchJob(id) => write!(f, "no job {id}"),
            Refusal::NoSuchAttempt(id) => write!(f, "no attempt {id}"),
            Refusal::RunExists(id) => write!(f, "{id} exists already"),
            Refusal::KeyReused(id) => {
                write!(
                    f,
                    "the idempotency key was used for {id} with another request"
                )
            }
            Refusal::RunnerMismatch => f.write_str("the lease was granted to another runner_id"),
            Refusal::Barred(why) => why.fmt(f),
            Refusal::JobMismatch => f.write_str("the lease is for another job"),
            Refusal::RunnerBusy(id) => write!(f, "the runner holds an active lease on {id}"),
            Refusal::NotQueued(id) => write!(f, "{id} is not waiting for a lease"),
            Refusal::WrongState(what) => f.write_str(what),
            Refusal::BadPlan(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Refusal {}
