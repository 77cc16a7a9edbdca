//! The doctor: folds the events of each run and compares what follows with the tables.
//!
//! Replay applies facts, it never decides again. Everything is compared but what no fact speaks of:
//! the end of a lease, its heartbeats, progress, and when a cancel was heard. Reads a page at a
//! time, and can be asked while a server works. Before that, the engine is asked about its own
//! files ([`Reader::integrity`]): what is read here is not all that can be damaged.

use delta_core::{Attempt, AttemptId, JobId, Lease, LeaseKey, Millis, RunId, World};

use crate::StoreError;
use crate::events::{Tip, decode, sha256};
use crate::read::{JobRows, Reader, RunRows, StoredEvent};

/// Events and runs read at a time: small enough for no read to hold anything up.
const PAGE: usize = 500;

/// A run that keeps changing while it is examined is looked at again this often; one that is busier
/// is left for another time, and counted.
const LOOKS: usize = 20;

/// Characters of a differing value that are told: a row is a page of text at most.
const SHOWN_CHARACTERS: usize = 300;

/// Faults of an engine's files that are told one by one: one page may spoil a thousand rows.
pub const TOLD_FAULTS: usize = 20;

/// What an engine says about its own files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Integrity {
    /// What was looked at, and what was not.
    pub checked: String,
    /// The first faults.
    pub faults: Vec<String>,
    /// There were more.
    pub more: bool,
}

impl Integrity {
    pub fn fault(&mut self, what: String) {
        if self.faults.len() < TOLD_FAULTS {
            self.faults.push(what)
        } else {
            self.more = true
        }
    }
}

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
    let told = fold.world.runs.get(&run).and_then(Option::as_deref);
    row(run, "run", &told, &Some(&rows.run))?;
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
    let told = world.jobs[&id].as_deref();
    row(run, &id.to_string(), &told, &Some(&stored.job))?;
    let all = id.attempt(0)..=id.attempt(u32::MAX);
    let told: Vec<Attempt> = world
        .attempts
        .range(all)
        .filter_map(|(_, attempt)| attempt.as_deref().map(without_renewals))
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
    let found: Vec<(AttemptId, Lease)> = stored
        .past_leases
        .iter()
        .cloned()
        .map(|(id, lease)| (id, ended(lease)))
        .collect();
    let count = format!("{id}: past leases");
    row(run, &count, &told.len(), &found.len())?;
    for (told, found) in told.iter().zip(&found) {
        let what = format!("{}: past lease {}", told.0, told.1.number);
        row(run, &what, told, found)?;
    }
    Ok(())
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

/// Compares two rows, and names the field by which they differ, outermost name first.
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
    let expected: Vec<&str> = expected.lines().collect();
    let found: Vec<&str> = found.lines().collect();
    let pairs = expected.iter().zip(&found);
    let at = pairs.take_while(|(a, b)| a == b).count();
    let field = field(&expected[..expected.len().min(at + 1)]);
    let what = match field.as_str() {
        "" => what.to_string(),
        field => format!("{what}: {field}"),
    };
    Err(Trouble::Differs(Box::new(Difference {
        run,
        version: None,
        what,
        expected: value(&expected, at),
        found: value(&found, at),
    })))
}

/// The names that lead to the last of these lines of a pretty-printed value, such as `lease.state`.
fn field(lines: &[&str]) -> String {
    let mut path: Vec<(usize, &str)> = Vec::new();
    for line in lines {
        let depth = indent(line);
        path.retain(|(outer, _)| *outer < depth);
        path.push((depth, named(line).0));
    }
    let names: Vec<&str> = path
        .into_iter()
        .map(|(_, name)| name)
        .filter(|name| !name.is_empty())
        .collect();
    names.join(".")
}

/// The value that begins on a line of a pretty-printed value, on one line of its own.
fn value(lines: &[&str], at: usize) -> String {
    let Some(first) = lines.get(at) else {
        return "nothing".into();
    };
    let depth = indent(first);
    let mut text = named(first).1.to_string();
    for line in &lines[at + 1..] {
        let part = line.trim();
        let closing = part.starts_with([')', ']', '}']);
        if indent(line) < depth || indent(line) == depth && !closing {
            break;
        }
        if closing {
            text.truncate(text.trim_end_matches(',').len());
        } else if !text.ends_with(['(', '[']) {
            text.push(' ');
        }
        text.push_str(part);
        if indent(line) == depth {
            break;
        }
    }
    let text = text.trim_end_matches(',');
    text.chars().take(SHOWN_CHARACTERS).collect()
}

/// The name of a field, if the line has one, and what stands behind it.
fn named(line: &str) -> (&str, &str) {
    let line = line.trim();
    let plain = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let pair = line.split_once(": ").filter(|(name, _)| plain(name));
    pair.unwrap_or(("", line))
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn hex(digest: &delta_core::Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Outer {
        id: u32,
        inner: Option<Inner>,
    }

    #[derive(Clone, Debug, PartialEq)]
    struct Inner {
        at: Millis,
        cause: Option<delta_core::Cause>,
    }

    fn told(expected: &Outer, found: &Outer) -> [String; 3] {
        match row(RunId(1), "row", expected, found) {
            Err(Trouble::Differs(it)) => [it.what, it.expected, it.found],
            _ => panic!("no difference was found"),
        }
    }

    #[test]
    fn a_difference_is_named_down_to_the_innermost_field() {
        let inner = Inner {
            at: Millis(5),
            cause: None,
        };
        let one = Outer {
            id: 1,
            inner: Some(inner.clone()),
        };
        let mut other = one.clone();
        other.inner.as_mut().unwrap().at = Millis(6);
        assert_eq!(told(&one, &other), ["row: inner.at", "5", "6"]);
        let cause = Some(delta_core::Cause::UserExit);
        let at = inner.at;
        other.inner = Some(Inner { at, cause });
        let found = "Some(UserExit)";
        assert_eq!(told(&one, &other), ["row: inner.cause", "None", found]);
        other.inner = None;
        assert_eq!(told(&other, &one)[..2], ["row: inner", "None"]);
    }
}
