//! Hot columns: names of states, ids and numbers as both SQL stores keep them.

use delta_core::lease::{ClosingKind, Revocation};
use delta_core::{AttemptState, Cause, Digest, JobId, LeaseState, Resolution, RunId, RunState};

use super::corrupt;
use crate::StoreError;

macro_rules! named_column {
    ($function:ident, $type:ty, $what:literal) => {
        #[doc = concat!("Reads back ", $what, " from its name.")]
        pub fn $function(name: &str) -> Result<$type, StoreError> {
            <$type>::from_name(name).ok_or_else(|| corrupt($what, format!("unknown name `{name}`")))
        }
    };
}

named_column!(run_state, RunState, "a run state");
named_column!(attempt_state, AttemptState, "an attempt state");
named_column!(lease_state, LeaseState, "a lease state");
named_column!(resolution, Resolution, "a resolution");
named_column!(revocation, Revocation, "a revocation");
named_column!(cause, Cause, "a cause");

pub fn closing_kind_name(kind: ClosingKind) -> &'static str {
    match kind {
        ClosingKind::Complete => "complete",
        ClosingKind::CancelAck => "cancel_ack",
    }
}

pub fn closing_kind(name: &str) -> Result<ClosingKind, StoreError> {
    match name {
        "complete" => Ok(ClosingKind::Complete),
        "cancel_ack" => Ok(ClosingKind::CancelAck),
        other => Err(corrupt("a closing", format!("unknown name `{other}`"))),
    }
}

/// A run's id as 16 bytes, most significant first, so that bytes sort as ids do.
pub fn run_bytes(id: RunId) -> [u8; 16] {
    id.0.to_be_bytes()
}

pub fn run_id(bytes: &[u8]) -> Result<RunId, StoreError> {
    let bytes = bytes
        .try_into()
        .map_err(|_| corrupt("a run id", "not 16 bytes"))?;
    Ok(RunId(u128::from_be_bytes(bytes)))
}

/// A job's id as people write it.
pub fn job_id(text: &str) -> Result<JobId, StoreError> {
    text.parse().map_err(|why| corrupt("a job id", why))
}

pub fn digest(bytes: &[u8]) -> Result<Digest, StoreError> {
    bytes
        .try_into()
        .map_err(|_| corrupt("a digest", "not 32 bytes"))
}

/// SQL knows only signed numbers: unsigned ones keep their bits.
pub fn signed(number: u64) -> i64 {
    number as i64
}

pub fn unsigned(number: i64) -> u64 {
    number as u64
}

pub fn small(number: i64) -> Result<u32, StoreError> {
    u32::try_from(number).map_err(|_| corrupt("a number", format!("{number} is out of range")))
}
