//! Results of tests on their way into the store: what is taken of one, and how many a lease may
//! have (EP-12). Whether the lease is good is for the caller to see.

use std::collections::{BTreeMap, HashMap};

use delta_core::{LeaseKey, Millis, Text};
use delta_store::StoreError;
use delta_store::results::{ResultClaim, ResultCounts, ResultRow, ResultStatus, result_key};
use delta_wire::agent::proto::{RunSummary, TestResult, TestStatus};

use crate::store_sides::StoreSides;

/// Bytes of what names a test. More is generated text, and still told apart by its key.
const MAX_NAME: usize = 1024;
/// Bytes of a message: what a list shows.
const MAX_MESSAGE: usize = 4 * 1024;
/// Bytes of a trace: hundreds of frames. One of ten megabytes is cut here (EP-12).
const MAX_TRACE: usize = 64 * 1024;
/// Entries of metadata, and bytes of each side of one.
const MAX_METADATA: usize = 32;
const MAX_ENTRY: usize = 1024;
/// Results of one lease: twice the largest suite we know of.
pub const MAX_RESULTS: u64 = 200_000;
/// Bytes of their texts: every case of the largest suite may have half a kilobyte, or two thousand
/// of them a whole trace.
pub const MAX_BYTES: u64 = 128 * 1024 * 1024;

/// Why a result is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    Missing(&'static str),
}

/// What tells results of one lease apart.
pub type Key = [u8; 16];

/// Which result is none any more, where that is what is said; without a key all of the lease.
pub fn withdrawn(said: &TestResult) -> Option<Option<Key>> {
    let one = !said.test_id.is_empty();
    said.withdrawn
        .then(|| one.then(|| result_key(&said.test_id, said.n)))
}

/// What is kept of a result.
pub fn row(said: TestResult, at: Millis) -> Result<ResultRow, Unusable> {
    let status = match said.status() {
        TestStatus::Unspecified => return Err(Unusable::Missing("test_result.status")),
        TestStatus::Pass => ResultStatus::Pass,
        TestStatus::Fail => ResultStatus::Fail,
        TestStatus::Skip => ResultStatus::Skip,
        TestStatus::Error => ResultStatus::Error,
    };
    let name = if said.name.is_empty() {
        said.test_id.clone()
    } else {
        said.name
    };
    if name.is_empty() {
        return Err(Unusable::Missing("test_result.name"));
    }
    // Told apart by all of it, whatever is cut for people.
    let key = if said.test_id.is_empty() {
        result_key(&format!("{}\0{name}", said.suite), said.n)
    } else {
        result_key(&said.test_id, said.n)
    };
    Ok(ResultRow {
        key,
        status,
        test_id: clip(said.test_id, MAX_NAME),
        suite: clip(said.suite, MAX_NAME),
        name: clip(name, MAX_NAME),
        // A negative duration says nothing.
        duration_ms: u64::try_from(said.duration_ms).ok(),
        message: filled(said.error_message, MAX_MESSAGE),
        trace: filled(said.stack_trace, MAX_TRACE),
        metadata: metadata(said.metadata),
        at,
    })
}

fn metadata(said: std::collections::HashMap<String, String>) -> Option<Text> {
    let sorted: BTreeMap<String, String> = said.into_iter().collect();
    let kept = sorted.into_iter().take(MAX_METADATA);
    let kept: BTreeMap<Text, Text> = kept
        .map(|(name, value)| (clip(name, MAX_ENTRY), clip(value, MAX_ENTRY)))
        .collect();
    let kept: BTreeMap<&str, &str> = kept
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    (!kept.is_empty()).then(|| serde_json::to_string(&kept).unwrap_or_default().into())
}

fn filled(text: String, most: usize) -> Option<Text> {
    (!text.is_empty()).then(|| clip(text, most))
}

/// Cuts a text at a character, and says that it did.
fn clip(mut text: String, most: usize) -> Text {
    const MARK: &str = " [cut]";
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - MARK.len()));
        text.push_str(MARK);
    }
    text.into()
}

/// What a lease says its results come to; nothing where it says nothing of tests.
pub fn claimed(said: Option<&RunSummary>) -> Option<ResultCounts> {
    let said = said?;
    let count = |number: i32| u64::try_from(number).unwrap_or(0);
    let counts = ResultCounts {
        failed: count(said.failed),
        errors: count(said.errors),
        skipped: count(said.skipped),
        passed: count(said.passed),
    };
    (counts.total() > 0 || said.total_tests > 0).then_some(counts)
}

/// What is known of a lease's results while they come in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ledger {
    known: bool,
    rows: u64,
    bytes: u64,
    dropped: u64,
    /// What the lease said of them before.
    claimed: Option<ResultCounts>,
}

impl Ledger {
    pub fn is_full(&self) -> bool {
        self.rows >= MAX_RESULTS || self.bytes >= MAX_BYTES
    }

    /// Writes as many as there is room for; the others are counted.
    pub fn put(
        &mut self,
        sides: &StoreSides,
        lease: LeaseKey,
        rows: &[ResultRow],
    ) -> Result<(), StoreError> {
        self.look(sides, lease)?;
        let bytes = rows.iter().map(ResultRow::size).sum::<u64>();
        let (count, bytes) = (self.rows + rows.len() as u64, self.bytes + bytes);
        if count > MAX_RESULTS || bytes > MAX_BYTES {
            return self.put_what_fits(sides, lease, rows);
        }
        sides.tables.put_results(lease, rows)?;
        (self.rows, self.bytes) = (count, bytes);
        Ok(())
    }

    /// Repeats were counted as if they were new: what there really is decides. What replaces a
    /// result takes the room of it.
    fn put_what_fits(
        &mut self,
        sides: &StoreSides,
        lease: LeaseKey,
        rows: &[ResultRow],
    ) -> Result<(), StoreError> {
        self.known = false;
        self.look(sides, lease)?;
        let keys: Vec<Key> = rows.iter().map(|row| row.key).collect();
        let there = sides.reader.sizes_of_results(lease, &keys)?;
        let mut there: HashMap<Key, u64> = there.into_iter().collect();
        let (mut count, mut bytes) = (self.rows, self.bytes);
        let fits = rows.iter().filter(|row| {
            let before = there.get(&row.key);
            let more = count + u64::from(before.is_none());
            let larger = bytes.saturating_sub(before.copied().unwrap_or(0)) + row.size();
            let fits = more <= MAX_RESULTS && larger <= MAX_BYTES;
            if fits {
                (count, bytes) = (more, larger);
                there.insert(row.key, row.size());
            }
            fits
        });
        let fits: Vec<ResultRow> = fits.cloned().collect();
        sides.tables.put_results(lease, &fits)?;
        (self.rows, self.bytes) = (count, bytes);
        self.dropped += (rows.len() - fits.len()) as u64;
        Ok(())
    }

    /// Takes back results; all of them where it is not said which.
    pub fn withdraw(
        &mut self,
        sides: &StoreSides,
        lease: LeaseKey,
        keys: Option<&[Key]>,
    ) -> Result<(), StoreError> {
        sides.tables.withdraw_results(lease, keys)?;
        self.known = false;
        Ok(())
    }

    /// Notes what the lease said of its results; one that says nothing now takes nothing back.
    pub fn settle(
        &mut self,
        sides: &StoreSides,
        lease: LeaseKey,
        counts: Option<ResultCounts>,
    ) -> Result<(), StoreError> {
        self.look(sides, lease)?;
        if counts.is_none() && self.dropped == 0 {
            return Ok(());
        }
        let (counts, dropped) = (counts.or(self.claimed), self.dropped);
        self.claimed = counts;
        sides
            .tables
            .put_result_claim(lease, &ResultClaim { counts, dropped })
    }

    fn look(&mut self, sides: &StoreSides, lease: LeaseKey) -> Result<(), StoreError> {
        if !self.known {
            let there = sides.reader.lease_results(lease)?;
            (self.rows, self.bytes) = (there.counts.total(), there.bytes);
            let before = there.claim.unwrap_or_default();
            self.dropped = self.dropped.max(before.dropped);
            self.claimed = before.counts;
            self.known = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn said() -> TestResult {
        TestResult {
            test_id: "t".into(),
            name: "name".into(),
            status: TestStatus::Fail.into(),
            ..Default::default()
        }
    }

    // EP-12
    #[test]
    fn what_is_too_long_is_cut_and_a_negative_duration_is_none() {
        let long = TestResult {
            duration_ms: -1,
            stack_trace: "é".repeat(5 << 20),
            error_message: "x".repeat(10_000),
            metadata: (0..100)
                .map(|n| (format!("{n:03}"), "v".repeat(5000)))
                .collect(),
            ..said()
        };
        let kept = row(long, Millis(1)).unwrap();
        assert_eq!(kept.duration_ms, None);
        let trace = kept.trace.as_deref().unwrap();
        assert!(trace.len() <= MAX_TRACE && trace.ends_with("é [cut]"));
        assert_eq!(kept.message.as_deref().unwrap().len(), MAX_MESSAGE);
        let metadata: BTreeMap<String, String> =
            serde_json::from_str(kept.metadata.as_deref().unwrap()).unwrap();
        assert_eq!(metadata.len(), MAX_METADATA);
        assert!(metadata.values().all(|value| value.len() <= MAX_ENTRY));
    }

    #[test]
    fn a_result_has_a_status_and_a_name() {
        let without = TestResult {
            status: 0,
            ..said()
        };
        let missing = Unusable::Missing("test_result.status");
        assert_eq!(row(without, Millis(1)).unwrap_err(), missing);
        let named_by_id = TestResult {
            name: String::new(),
            ..said()
        };
        assert_eq!(&*row(named_by_id, Millis(1)).unwrap().name, "t");
        let nameless = TestResult {
            name: String::new(),
            test_id: String::new(),
            ..said()
        };
        assert!(row(nameless, Millis(1)).is_err());
        let twice = TestResult { n: 1, ..said() };
        let keys = [said(), twice].map(|it| row(it, Millis(1)).unwrap().key);
        assert_ne!(keys[0], keys[1]);
    }

    // EP-15: whoever says nothing of what all results come to takes nothing back.
    #[test]
    fn a_claim_stands_until_another_is_made() {
        let sides = StoreSides::in_memory();
        let lease = delta_core::RunId(1).job(1).attempt(1).lease(1);
        let claimed = ResultClaim {
            counts: Some(ResultCounts {
                passed: 9,
                ..Default::default()
            }),
            dropped: 3,
        };
        sides.tables.put_result_claim(lease, &claimed).unwrap();
        let mut ledger = Ledger::default();
        ledger.settle(&sides, lease, None).unwrap();
        let kept = || sides.reader.lease_results(lease).unwrap().claim;
        assert_eq!(kept(), Some(claimed));
        let other = ResultCounts::default();
        ledger.settle(&sides, lease, Some(other)).unwrap();
        ledger.settle(&sides, lease, None).unwrap();
        assert_eq!(kept().unwrap().counts, Some(other));
    }

    // EP-16: where there is no room for more, what was there can still change.
    #[test]
    fn a_full_lease_takes_what_replaces_its_results() {
        let sides = StoreSides::in_memory();
        let lease = delta_core::RunId(1).job(1).attempt(1).lease(1);
        let at = |n: u32, status: TestStatus| {
            let status = status.into();
            let said = TestResult {
                n,
                status,
                ..said()
            };
            row(said, Millis(1)).unwrap()
        };
        let most = u32::try_from(MAX_RESULTS).unwrap();
        let rows: Vec<ResultRow> = (0..most).map(|n| at(n, TestStatus::Pass)).collect();
        sides.tables.put_results(lease, &rows).unwrap();
        let mut ledger = Ledger::default();
        let failed = |n: u32| at(n, TestStatus::Fail);
        let rows = [failed(most), failed(7), failed(most + 1), failed(8)];
        ledger.put(&sides, lease, &rows).unwrap();
        let there = sides.reader.lease_results(lease).unwrap();
        assert_eq!(
            (there.counts.total(), there.counts.failed),
            (MAX_RESULTS, 2)
        );
        assert!(ledger.is_full() && ledger.dropped == 2);
    }
}
