//! The doctor: folds the events of each run and compares what follows with the tables.
//!
//! Replay applies facts, it never decides again. Everything is compared but what no fact speaks of:
//! the end of a lease, its heartbeats, progress, and when a cancel was heard. Reads a page at a
//! time, and can be asked while a server works.

use delta_core::{Attempt, AttemptId, JobId, Lease, LeaseKey, Millis, RunId, World};

use crate::StoreError;
use crate::events::{Tip, decode, sha256};
use crate::read::{JobRows, Reader, RunRows, StoredEvent};

/// Events and runs read at a time: small enough for no read to hold anything up.
const PAGE: usize = 500;

/// A run that keeps changing while it is examined is looked at again this often; one that is busier
/// is left for another time, and counted.
const LOOKS: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub runs: u64,
    pub events: u64,
    /// Runs that changed too often to be compared.
    pub busy: u64,
    /// Runs with a difference, the first of which is told in full.
    pub different: u64,
    pub first_difference: Option<Difference>,
}

/// Where events and tables disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub run: RunId,
    /// The event it was found at; `None` when the events are whole and a row is not.
    pub version: Option<u64>,
    /// What differs: `event hash`, `job_…_1: resolution`, and so on.
    pub what: String,
    pub expected: String,
    pub found: String,
}

/// Why a run could not be found in order.
enum Trouble {
    Differs(Box<Difference>),
    Store(StoreError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Trouble {
        Trouble::Store(error)
    }
}

/// Looks at every run; `progress` is told how many were done.
pub fn examine(reader: &dyn Reader, progress: &mut dyn FnMut(u64)) -> Result<Report, StoreError> {
    let mut report = Report::default();
    let mut after = None;
    loop {
        let page = reader.run_ids(after, PAGE)?;
        for &run in &page {
            match examine_run(reader, run, &mut report) {
                Ok(()) => {}
                Err(Trouble::Store(error)) => return Err(error),
                Err(Trouble::Differs(difference)) => {
                    report.different += 1;
                    report.first_difference.get_or_insert(*difference);
                }
            }
            report.runs += 1;
            progress(report.runs);
        }
        match page.last() {
            Some(last) => after = Some(*last),
            None => return Ok(report),
        }
    }
}

/// Folds and compares, again when the run moved in between.
fn examine_run(reader: &dyn Reader, run: RunId, report: &mut Report) -> Result<(), Trouble> {
    for _ in 0..LOOKS {
        let Some(before) = reader.run(run)? else {
            return Ok(()); // Retention was faster.
        };
        let mut fold = Fold::new(run);
        let folded = fold.all(reader);
        let compared = folded.and_then(|()| compare(reader, &fold, &before));
        let unmoved = reader
            .run(run)?
            .is_some_and(|now| now.version == before.version);
        if unmoved {
            report.events += fold.tip.version;
            return compared;
        }
    }
    report.busy += 1;
    Ok(())
}

/// A run's rows as its events tell them.
struct Fold {
    run: RunId,
    world: World,
    tip: Tip,
}

impl Fold {
    fn new(run: RunId) -> Fold {
        Fold {
            run,
            world: World::default(),
            tip: Tip::NONE,
        }
    }

    fn all(&mut self, reader: &dyn Reader) -> Result<(), Trouble> {
        loop {
            let page = reader.events(self.run, self.tip.version, PAGE)?;
            for event in &page {
                self.event(event)?;
            }
            if page.is_empty() {
                return Ok(());
            }
        }
    }

    fn event(&mut self, event: &StoredEvent) -> Result<(), Trouble> {
        let next = self.tip.next(&event.bytes);
        self.same(next.version, "event version", &next.version, &event.version)?;
        let (ours, theirs) = (hex(&next.hash), hex(&event.hash));
        self.same(next.version, "event hash", &ours, &theirs)?;
        let version = next.version;
        let record = match decode(&event.bytes) {
            Ok(record) => record,
            Err(error) => {
                return Err(self.differs(version, "event", "a record", &error.to_string()));
            }
        };
        self.same(version, "event run", &self.run, &record.run)?;
        self.same(version, "event moment", &record.at.0, &event.at.0)?;
        for fact in &record.facts {
            if let Err(unfit) = fact.apply(&mut self.world, self.run, record.at) {
                let expected = "a fact that fits what came before";
                return Err(self.differs(version, "event fact", expected, &unfit.to_string()));
            }
        }
        self.tip = next;
        Ok(())
    }

    fn same<T: PartialEq + std::fmt::Display>(
        &self,
        version: u64,
        what: &str,
        expected: &T,
        found: &T,
    ) -> Result<(), Trouble> {
        if expected == found {
            return Ok(());
        }
        Err(self.differs(version, what, &expected.to_string(), &found.to_string()))
    }

    fn differs(&self, version: u64, what: &str, expected: &str, found: &str) -> Trouble {
        Trouble::Differs(Box::new(Difference {
            run: self.run,
            version: Some(version),
            what: what.into(),
            expected: expected.into(),
            found: found.into(),
        }))
    }
}

fn compare(reader: &dyn Reader, fold: &Fold, rows: &RunRows) -> Result<(), Trouble> {
    let run = fold.run;
    let told = |row: Option<&Option<_>>| row.cloned().flatten();
    row(
        run,
        "run",
        &told(fold.world.runs.get(&run)),
        &Some(rows.run.clone()),
    )?;
    row(run, "last event", &fold.tip.version, &rows.version)?;
    let told: Vec<JobId> = fold.world.jobs.keys().copied().collect();
    let stored: Vec<JobId> = rows.jobs.iter().map(|(job, _)| job.id).collect();
    row(run, "jobs", &told, &stored)?;
    for id in told {
        let stored = reader.job(id)?;
        let Some(stored) = stored else {
            return row(run, &id.to_string(), &"a row", &"none");
        };
        compare_job(fold, id, &stored)?;
        let digest = reader.spec(id)?.map(|spec| hex(&sha256(spec.as_bytes())));
        let what = format!("{id}: spec");
        row(run, &what, &Some(hex(&stored.job.spec)), &digest)?;
    }
    Ok(())
}

fn compare_job(fold: &Fold, id: JobId, stored: &JobRows) -> Result<(), Trouble> {
    let (run, world) = (fold.run, &fold.world);
    let told = world.jobs[&id].as_ref();
    row(run, &id.to_string(), &told, &Some(&stored.job))?;
    let all = id.attempt(0)..=id.attempt(u32::MAX);
    let told: Vec<Attempt> = world
        .attempts
        .range(all)
        .filter_map(|(_, attempt)| attempt.as_ref().map(without_renewals))
        .collect();
    let found: Vec<Attempt> = stored.attempts.iter().map(without_renewals).collect();
    row(run, &format!("{id}: attempts"), &told.len(), &found.len())?;
    for (told, found) in told.iter().zip(&found) {
        row(run, &told.id.to_string(), told, found)?;
    }
    let first = id.attempt(0).lease(0);
    let last = id.attempt(u32::MAX).lease(u64::MAX);
    let told: Vec<(AttemptId, Lease)> = world
        .past_leases
        .range(first..=last)
        .filter_map(|(LeaseKey { attempt, .. }, lease)| Some((*attempt, lease.clone()?)))
        .map(|(attempt, lease)| (attempt, ended(lease)))
        .collect();
    let found = stored.past_leases.iter().cloned();
    let found: Vec<(AttemptId, Lease)> = found.map(|(id, lease)| (id, ended(lease))).collect();
    row(run, &format!("{id}: past leases"), &told, &found)
}

/// Renewals leave no event, so they are not compared.
fn without_renewals(attempt: &Attempt) -> Attempt {
    let mut plain = attempt.clone();
    plain.cancel_told_at = None;
    plain.progress = Default::default();
    plain.lease = plain.lease.map(ended);
    plain
}

fn ended(mut lease: Lease) -> Lease {
    lease.expires_at = Millis::ZERO;
    lease.heartbeat_seq = None;
    lease
}

/// Compares two rows, and names the field by which they differ.
fn row<T: PartialEq + std::fmt::Debug>(
    run: RunId,
    what: &str,
    expected: &T,
    found: &T,
) -> Result<(), Trouble> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (format!("{expected:#?}"), format!("{found:#?}"));
    let pairs = expected.lines().zip(found.lines());
    let differing = pairs.clone().find(|(a, b)| a != b);
    let (ours, theirs) = differing.unwrap_or((&expected, &found));
    let field = ours.trim().split_once(": ").map_or("", |(field, _)| field);
    let what = match field {
        "" => what.to_string(),
        field => format!("{what}: {field}"),
    };
    Err(Trouble::Differs(Box::new(Difference {
        run,
        version: None,
        what,
        expected: ours.trim().trim_end_matches(',').to_string(),
        found: theirs.trim().trim_end_matches(',').to_string(),
    })))
}

fn hex(digest: &delta_core::Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
