//! What the two models of one job share: the run, the timings, leases by small numbers, and the
//! commands that messages turn into.

use delta_core::attempt::{Progress, Report};
use delta_core::command::{LeaseProof, NewJob, NewRun, Status};
use delta_core::lease::epoch;
use delta_core::policy::RetryOn;
use delta_core::run::RunHeader;
use delta_core::{Cause, Command, Digest, JobId, LeaseKey, Policy, RunId, Settings, Span, Text};

pub const RUN: RunId = RunId(1);
pub const UNIT: Span = Span::secs(1);
/// Two agents: enough for every race about one lease.
pub const AGENTS: u8 = 2;

/// A lease as agents know it: attempt and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    pub index: u8,
    pub number: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    Success,
    /// A failure the job's policy retries.
    Flaky,
}

/// What an agent may say about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Says {
    Ack,
    /// With a number, or without one (0).
    Beat(u8),
    Complete(Outcome),
    CancelAck,
    Decline,
}

pub fn job() -> JobId {
    RUN.job(1)
}

pub fn name(agent: u8) -> Text {
    match agent {
        0 => "a".into(),
        _ => "b".into(),
    }
}

pub fn token(held: Held) -> Digest {
    let mut token = [0; 32];
    (token[0], token[1]) = (held.index, held.number);
    token
}

pub fn key(held: Held, settings: &Settings) -> LeaseKey {
    let attempt = job().attempt(u32::from(held.index));
    attempt.lease(epoch(settings.incarnation, u32::from(held.number)))
}

/// Timings in a few units each, so that every order of deadlines is reachable. The lease lives
/// longer than a job that was acknowledged at once may take.
pub fn settings() -> Settings {
    Settings {
        lease_ttl: UNIT.times(3),
        heartbeat_interval: UNIT,
        ack_timeout: UNIT,
        cancel_deadline: UNIT,
        timeout_buffer: Span::ZERO,
        max_losses: 2,
        max_dispatches: 2,
        retry_base: UNIT,
        retry_cap: UNIT,
        ..Settings::recommended()
    }
}

pub fn header(run_timeout: Span) -> RunHeader {
    RunHeader {
        trusted: true,
        run_timeout,
        wait_timeout: run_timeout,
        planning_timeout: UNIT.times(2),
        ..RunHeader::plain("ann", &settings())
    }
}

pub fn policy(max_attempts: u32) -> Policy {
    Policy {
        max_attempts,
        timeout: UNIT,
        retry_on: [RetryOn::Cause(Cause::Flaky), RetryOn::Timeout].into(),
        ..Policy::plain(&settings())
    }
}

pub fn create_run(max_attempts: u32, run_timeout: Span) -> Command {
    let job = NewJob {
        name: "unit".into(),
        policy: policy(max_attempts),
        spec: [0; 32],
        kept: None,
    };
    Command::CreateRun(Box::new(NewRun {
        id: RUN,
        header: header(run_timeout),
        jobs: Some(vec![job]),
    }))
}

/// The message as the server gets it.
pub fn command(agent: u8, held: Held, says: Says, settings: &Settings) -> Command {
    let proof = LeaseProof {
        key: key(held, settings),
        token: token(held),
        principal: name(agent),
        runner: name(agent),
        speaker: delta_core::rights::Speaker::anybody(),
    };
    match says {
        Says::Ack => Command::AckLease { proof, job: job() },
        Says::Beat(seq) => Command::Heartbeat {
            proof,
            seq: (seq > 0).then_some(u64::from(seq)),
            progress: Progress::default(),
            uploading: seq == 2,
        },
        Says::Complete(outcome) => {
            let success = outcome == Outcome::Success;
            let report = Report {
                exit_code: Some(i64::from(!success)),
                ..Report::default()
            };
            let status = if success {
                Status::Succeeded
            } else {
                Status::Failed
            };
            Command::Complete {
                proof,
                digest: [outcome as u8; 32],
                status,
                cause: (!success).then_some(Cause::Flaky),
                report: Box::new(report),
            }
        }
        Says::CancelAck => Command::CancelAck {
            proof,
            digest: [9; 32],
            report: Box::default(),
        },
        Says::Decline => Command::Decline { proof },
    }
}

/// A grant of the current attempt, with the next number.
pub fn grant(agent: u8, held: Held, settings: &Settings) -> Command {
    let key = key(held, settings);
    Command::Grant {
        attempt: key.attempt,
        principal: name(agent),
        runner: name(agent),
        token: token(held),
        epoch: key.epoch,
    }
}
