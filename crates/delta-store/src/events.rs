//! Events: the versioned encoding of records, and the hash chain over their exact bytes.
//!
//! `{"v":1,"run":…,"command":…,"actor":…,"at":…,"facts":[…]}`. The run's id is inside, so that a
//! record cannot be moved to another run. Bytes once written are never written again differently:
//! readers decode every version there has been.
//!
//! The SQL stores write the records that one commit adds to a run as one row (see [`EventRow`]).
//! Each record keeps its own version and its own place in the chain.

use aws_lc_rs::digest::{Context, SHA256};
use delta_core::{Digest, Fact, Millis, Record, RunId, Text};
use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::codec::{corrupt, fact, primitives};
use crate::id_map::IdMap;
use crate::read::StoredEvent;

/// The version written now.
pub const VERSION: u32 = 1;

/// What the first event of a run is chained to.
pub const GENESIS: Digest = [0; 32];

/// Every command that ever made a record, so that a record names its command without a copy.
const COMMANDS: [&str; 18] = [
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
    "take_turn",
    "revoke",
    "attempt_due",
    "run_due",
    "give_up",
    "report",
    "clamp",
];

#[derive(Serialize)]
struct Shown<'a> {
    v: u32,
    #[serde(with = "primitives::run_id")]
    run: RunId,
    command: &'a str,
    actor: &'a str,
    #[serde(with = "primitives::millis")]
    at: Millis,
    #[serde(serialize_with = "fact::list::serialize")]
    facts: &'a [Fact],
}

#[derive(Deserialize)]
struct Read {
    v: u32,
    #[serde(with = "primitives::run_id")]
    run: RunId,
    command: String,
    #[serde(with = "primitives::text")]
    actor: Text,
    #[serde(with = "primitives::millis")]
    at: Millis,
    #[serde(deserialize_with = "fact::list::deserialize")]
    facts: Vec<Fact>,
}

pub fn encode(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_into(record, &mut bytes);
    bytes
}

fn encode_into(record: &Record, bytes: &mut Vec<u8>) {
    let shown = Shown {
        v: VERSION,
        run: record.run,
        command: record.command,
        actor: &record.actor,
        at: record.at,
        facts: &record.facts,
    };
    serde_json::to_writer(bytes, &shown).expect("a record is always JSON");
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

/// A row is closed at this size: a reader of a few events holds no more than this beside them.
const ROW_BYTES: usize = 64 << 10;

/// Stands between the records of a row. JSON writes it inside a text as an escape.
const BETWEEN: u8 = b'\n';

/// Consecutive records of one run, written by one commit.
///
/// A row is found by the version of its first record. That is a wall as well: whoever continues
/// a chain writes the version behind the tip it knows, so that two who continue the same one meet
/// in the key, however many records each of them has.
#[derive(Debug)]
pub(crate) struct EventRow {
    pub run: RunId,
    pub first: u64,
    pub records: u32,
    /// The latest moment of the records.
    pub at: Millis,
    /// Where the chain stands after the last of them.
    pub hash: Digest,
    pub bytes: Vec<u8>,
}

/// The rows of a batch, and where each run's chain stands after it.
#[derive(Default)]
pub(crate) struct Chained {
    pub rows: Vec<EventRow>,
    /// By run: its tip, and its row that is still open.
    tips: IdMap<RunId, (Tip, usize)>,
}

impl Chained {
    /// Continues the chains; `tip` says where a run's stands before the batch.
    pub fn of(
        records: &[Record],
        mut tip: impl FnMut(RunId) -> Result<Tip, StoreError>,
    ) -> Result<Chained, StoreError> {
        let mut chained = Chained::default();
        for record in records {
            let before = match chained.tips.get(&record.run) {
                Some((tip, _)) => *tip,
                None => tip(record.run)?,
            };
            chained.add(record, before);
        }
        Ok(chained)
    }

    fn add(&mut self, record: &Record, before: Tip) {
        let open = self.tips.get(&record.run).map(|(_, open)| *open);
        let fits = |open: &usize| self.rows[*open].bytes.len() < ROW_BYTES;
        let at = open.filter(fits).unwrap_or_else(|| {
            self.rows.push(EventRow {
                run: record.run,
                first: before.version + 1,
                records: 0,
                at: record.at,
                hash: before.hash,
                bytes: Vec::with_capacity(1024),
            });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        if row.records > 0 {
            row.bytes.push(BETWEEN);
        }
        let start = row.bytes.len();
        encode_into(record, &mut row.bytes);
        let tip = before.next(&row.bytes[start..]);
        row.records += 1;
        row.at = row.at.max(record.at);
        row.hash = tip.hash;
        self.tips.insert(record.run, (tip, at));
    }

    pub fn tips(&self) -> impl Iterator<Item = (RunId, Tip)> {
        self.tips.iter().map(|(run, (tip, _))| (*run, *tip))
    }
}

/// Rows as they are read, unfolded into their records.
pub(crate) struct Unfolding {
    after: u64,
    limit: usize,
    /// Where the chain stands, once that is known.
    hash: Option<Digest>,
    pub events: Vec<StoredEvent>,
}

impl Unfolding {
    /// For up to `limit` events with a version above `after`.
    pub fn new(after: u64, limit: usize) -> Unfolding {
        Unfolding {
            after,
            limit,
            hash: None,
            events: Vec::new(),
        }
    }

    pub fn is_full(&self) -> bool {
        self.events.len() >= self.limit
    }

    /// Takes the next row of the run. The first one given is the run's first, or lies before the
    /// one that holds the first event asked for: the chain goes on from its hash.
    pub fn add(&mut self, row: &EventRow) {
        let pieces: Vec<&[u8]> = row.bytes.split(|byte| *byte == BETWEEN).collect();
        if row.first == 1 {
            self.hash = Some(GENESIS);
        }
        let moments = moments(&pieces, row.at);
        for (n, (bytes, at)) in pieces.iter().zip(moments).enumerate() {
            let version = row.first + n as u64;
            // What is stored is told as it is: the doctor compares it with what it should be.
            let hash = match self.hash {
                Some(previous) if n + 1 < pieces.len() => chain(&previous, version, bytes),
                _ => row.hash,
            };
            self.hash = self.hash.map(|_| hash);
            if version > self.after && !self.is_full() {
                self.events.push(StoredEvent {
                    version,
                    at,
                    bytes: bytes.to_vec(),
                    hash,
                });
            }
        }
        self.hash = Some(row.hash);
    }
}

/// The moment of each record. The row has only the latest, which stands for the record it is of.
fn moments(pieces: &[&[u8]], latest: Millis) -> Vec<Millis> {
    #[derive(Deserialize)]
    struct Moment {
        #[serde(with = "primitives::millis")]
        at: Millis,
    }
    let read =
        |bytes: &&[u8]| serde_json::from_slice(bytes).map_or(latest, |moment: Moment| moment.at);
    let mut moments: Vec<Millis> = match pieces {
        [_] => Vec::from([latest]),
        several => several.iter().map(read).collect(),
    };
    let last = moments.iter().enumerate().max_by_key(|(_, at)| **at);
    if let Some(at) = last.map(|(at, _)| at) {
        moments[at] = latest;
    }
    moments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(run: u128, at: i64) -> Record {
        Record {
            run: RunId(run),
            at: Millis(at),
            command: "report",
            actor: "two\nlines".into(),
            facts: Vec::new(),
        }
    }

    /// The chain as it would be with a row for each record.
    fn singly(records: &[Record]) -> Vec<StoredEvent> {
        let mut tip = Tip::NONE;
        let event = |record: &Record| {
            let bytes = encode(record);
            tip = tip.next(&bytes);
            let Tip { version, hash } = tip;
            let at = record.at;
            StoredEvent {
                version,
                at,
                bytes,
                hash,
            }
        };
        records.iter().map(event).collect()
    }

    #[test]
    fn the_records_of_a_batch_are_one_row_per_run_and_read_back_singly() {
        let moments = [5, 9, 7, 7];
        let ours: Vec<Record> = moments.iter().map(|at| record(1, *at)).collect();
        let mut both = ours.clone();
        both.insert(2, record(2, 8));
        let first = Chained::of(&ours[..1], |_| Ok(Tip::NONE)).unwrap();
        let (_, tip) = first.tips().next().unwrap();
        let begun = |run| Ok(if run == RunId(1) { tip } else { Tip::NONE });
        let rest = Chained::of(&both[1..], begun).unwrap();
        assert_eq!(rest.rows.len(), 2);
        assert_eq!((rest.rows[0].first, rest.rows[0].records), (2, 3));
        let expected = singly(&ours);
        for after in 0..5 {
            for limit in 0..5 {
                let mut unfolding = Unfolding::new(after, limit);
                unfolding.add(&first.rows[0]);
                unfolding.add(&rest.rows[0]);
                let wanted: Vec<StoredEvent> = expected
                    .iter()
                    .skip(after as usize)
                    .take(limit)
                    .cloned()
                    .collect();
                assert_eq!(unfolding.events, wanted, "after {after}, {limit}");
            }
        }
        // Two writers that know the same tip write the same key.
        let shorter = Chained::of(&ours[1..2], |_| Ok(tip)).unwrap();
        assert_eq!(shorter.rows[0].first, rest.rows[0].first);
    }

    #[test]
    fn a_row_is_closed_before_it_gets_large() {
        let mut long = record(1, 1);
        long.actor = "x".repeat(ROW_BYTES / 2).into();
        let records = [long.clone(), long.clone(), long];
        let chained = Chained::of(&records, |_| Ok(Tip::NONE)).unwrap();
        let sizes: Vec<(u64, u32)> = chained.rows.iter().map(|r| (r.first, r.records)).collect();
        assert_eq!(sizes, [(1, 2), (3, 1)]);
        let mut unfolding = Unfolding::new(0, 9);
        chained.rows.iter().for_each(|row| unfolding.add(row));
        assert_eq!(unfolding.events, singly(&records));
    }
}
