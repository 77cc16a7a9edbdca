//! Events: the versioned encoding of records, and the hash chain over their exact bytes.
//!
//! `{"v":1,"run":…,"command":…,"actor":…,"at":…,"facts":[…]}`. The run's id is inside, so that a
//! record cannot be moved to another run. Bytes once written are never written again differently:
//! readers decode every version there has been.

use aws_lc_rs::digest::{Context, SHA256};
use delta_core::{Digest, Fact, Millis, Record, RunId, Text};
use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::codec::{corrupt, fact, leaf};

/// The version written now.
pub const VERSION: u32 = 1;

/// What the first event of a run is chained to.
pub const GENESIS: Digest = [0; 32];

/// Every command that ever made a record, so that a record names its command without a copy.
const COMMANDS: [&str; 16] = [
    "create_run",
    "plan",
    "fail_plan",
    "grant",
    "ack_lease",
    "heartbeat",
    "complete",
    "cancel_ack",
    "decline",
    "cancel_run",
    "cancel_job",
    "revoke",
    "attempt_due",
    "run_due",
    "report",
    "clamp",
];

#[derive(Serialize)]
struct Shown<'a> {
    v: u32,
    #[serde(with = "leaf::run_id")]
    run: RunId,
    command: &'a str,
    actor: &'a str,
    #[serde(with = "leaf::millis")]
    at: Millis,
    #[serde(serialize_with = "fact::list::serialize")]
    facts: &'a [Fact],
}

#[derive(Deserialize)]
struct Read {
    v: u32,
    #[serde(with = "leaf::run_id")]
    run: RunId,
    command: String,
    #[serde(with = "leaf::text")]
    actor: Text,
    #[serde(with = "leaf::millis")]
    at: Millis,
    #[serde(deserialize_with = "fact::list::deserialize")]
    facts: Vec<Fact>,
}

pub fn encode(record: &Record) -> Vec<u8> {
    let shown = Shown {
        v: VERSION,
        run: record.run,
        command: record.command,
        actor: &record.actor,
        at: record.at,
        facts: &record.facts,
    };
    serde_json::to_vec(&shown).expect("a record is always JSON")
}

pub fn decode(bytes: &[u8]) -> Result<Record, StoreError> {
    let read: Read = serde_json::from_slice(bytes).map_err(|e| corrupt("an event", e))?;
    if read.v != VERSION {
        let why = format!("version {} is not known", read.v);
        return Err(corrupt("an event", why));
    }
    let command = COMMANDS
        .into_iter()
        .find(|known| *known == read.command)
        .ok_or_else(|| corrupt("an event", format!("unknown command `{}`", read.command)))?;
    let mut facts = read.facts;
    for fact in &mut facts {
        fact::place(fact, read.run);
    }
    Ok(Record {
        run: read.run,
        at: read.at,
        command,
        actor: read.actor,
        facts,
    })
}

/// SHA-256 of the previous hash, the version and the bytes: an event can be neither changed nor
/// left out without every later hash being wrong.
pub fn chain(previous: &Digest, version: u64, bytes: &[u8]) -> Digest {
    let mut context = Context::new(&SHA256);
    context.update(previous);
    context.update(&version.to_be_bytes());
    context.update(bytes);
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// SHA-256 of some bytes: what a job names its spec by.
pub fn sha256(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(aws_lc_rs::digest::digest(&SHA256, bytes).as_ref());
    digest
}

/// Where a run's chain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    pub version: u64,
    pub hash: Digest,
}

impl Tip {
    pub const NONE: Tip = Tip {
        version: 0,
        hash: GENESIS,
    };

    /// The tip after one more event.
    pub fn next(&self, bytes: &[u8]) -> Tip {
        let version = self.version + 1;
        Tip {
            version,
            hash: chain(&self.hash, version, bytes),
        }
    }
}
