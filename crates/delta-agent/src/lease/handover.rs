//! What an agent writes down about a lease so that its next process can go on with it: kept in the
//! attempt's state folder, which no job can read. The lease token is in it, so it is never shown.

use delta_wire::runner::{self, LeaseGranted};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::agent::SlotContext;
use crate::job_io::Carried;
use crate::work::Identity;

#[derive(Clone)]
pub(crate) struct HandoverNote {
    pub granted: LeaseGranted,
    /// What the protocol calls this one execution.
    pub execution: String,
    pub slot: u32,
    pub job_name: String,
    pub carried: Carried,
    pub untrusted: bool,
}

#[derive(Serialize)]
struct Written<'a> {
    granted: &'a LeaseGranted,
    execution: &'a str,
    slot: u32,
    job_name: &'a str,
    carried: &'a Carried,
    untrusted: bool,
}

#[derive(Deserialize)]
struct Read {
    granted: Box<RawValue>,
    execution: String,
    slot: u32,
    job_name: String,
    #[serde(default)]
    carried: Carried,
    #[serde(default)]
    untrusted: bool,
}

impl HandoverNote {
    pub fn of(context: &SlotContext, granted: &LeaseGranted, identity: &Identity) -> HandoverNote {
        HandoverNote {
            granted: granted.clone(),
            execution: context.execution.clone(),
            slot: context.slot,
            job_name: identity.job_name.clone(),
            carried: Carried::default(),
            untrusted: context.untrusted,
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let written = Written {
            granted: &self.granted,
            execution: &self.execution,
            slot: self.slot,
            job_name: &self.job_name,
            carried: &self.carried,
            untrusted: self.untrusted,
        };
        // Text and numbers: nothing in it can fail to be written.
        serde_json::to_vec(&written).unwrap_or_default()
    }

    /// Nothing when it was not written by an agent of this kind.
    pub fn from_bytes(bytes: &[u8]) -> Option<HandoverNote> {
        let read: Read = serde_json::from_slice(bytes).ok()?;
        let granted = runner::parse::<LeaseGranted>(read.granted.get().as_bytes()).ok()?;
        Some(HandoverNote {
            granted: granted.message,
            execution: read.execution,
            slot: read.slot,
            job_name: read.job_name,
            carried: read.carried,
            untrusted: read.untrusted,
        })
    }
}
