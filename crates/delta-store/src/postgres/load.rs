//! Bringing rows into a world: lock the runs first, then read what the locks protect, all in one
//! round trip.
//!
//! Rows that are in the world already are newer than the table's: a decision of this batch may
//! have changed them. They are never replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use delta_core::group::Members;
use delta_core::{AgentStanding, AttemptId, Digest, JobId, LeaseKey, RunId, Text, Want, World};
use tokio_postgres::Row;
use uuid::Uuid;

use super::connect::{Call, Session};
use super::rows;
use super::sql::Sql;
use super::store::{Batch, Locked, PgStore};
use super::value::{Fields, escape, unescape, uuid};
use crate::StoreError;
use crate::codec::column;
use crate::events::Tip;

/// What is asked for and not in the world yet.
#[derive(Default)]
struct Wanted {
    runs: BTreeSet<RunId>,
    jobs: BTreeSet<JobId>,
    attempts: BTreeSet<AttemptId>,
    past: BTreeSet<LeaseKey>,
    live: BTreeSet<RunId>,
    keys: BTreeSet<Digest>,
    uniques: BTreeSet<Digest>,
    groups: BTreeSet<Digest>,
    holders: BTreeSet<(Text, Text)>,
    agents: BTreeSet<Text>,
    /// Jobs whose current attempt comes along: whoever asks for a job looks at it next.
    current: BTreeSet<JobId>,
}

impl Wanted {
    fn sort(wants: &BTreeSet<Want>, world: &World) -> Wanted {
        let mut wanted = Wanted::default();
        for want in wants {
            wanted.add(want, world);
        }
        for id in &wanted.attempts {
            wanted.current.remove(&id.job);
        }
        wanted
    }

    fn add(&mut self, want: &Want, world: &World) {
        match want {
            Want::Run(id) => self.add_run(*id, world),
            Want::Job(id) if !world.jobs.contains_key(id) => {
                self.add_job(*id, world);
                self.current.insert(*id);
            }
            Want::Attempt(id) if !world.attempts.contains_key(id) => {
                self.attempts.insert(*id);
                self.add_job(id.job, world);
            }
            Want::PastLease(key) if !world.past_leases.contains_key(key) => {
                self.past.insert(*key);
                self.add_run(key.attempt.run(), world);
            }
            Want::LiveJobs(id) if !world.whole.contains(id) => {
                self.live.insert(*id);
                self.add_run(*id, world);
            }
            Want::Key(key) if !world.keys.contains_key(key) => {
                self.keys.insert(*key);
            }
            Want::Unique(key) if !world.uniques.contains_key(key) => {
                self.uniques.insert(*key);
            }
            Want::Group(key) if !world.groups.contains_key(key) => {
                self.groups.insert(*key);
            }
            Want::Holder(principal, runner) => {
                let holder = (principal.clone(), runner.clone());
                if !world.holders.contains_key(&holder) {
                    self.holders.insert(holder);
                }
            }
            Want::Agent(id) if !world.agents.contains_key(id) => {
                self.agents.insert(id.clone());
            }
            _ => {}
        }
    }

    fn add_run(&mut self, id: RunId, world: &World) {
        if !world.runs.contains_key(&id) {
            self.runs.insert(id);
        }
    }

    fn add_job(&mut self, id: JobId, world: &World) {
        if !world.jobs.contains_key(&id) {
            self.jobs.insert(id);
        }
        self.add_run(id.run, world);
    }

    /// Enters what was not found as absent.
    fn close(self, world: &mut World) {
        for id in self.runs {
            world.runs.entry(id).or_insert(None);
        }
        for id in self.jobs {
            world.jobs.entry(id).or_insert(None);
        }
        for id in self.attempts {
            world.attempts.entry(id).or_insert(None);
        }
        for key in self.past {
            world.past_leases.entry(key).or_insert(None);
        }
        for key in self.keys {
            world.keys.entry(key).or_insert(None);
        }
        for key in self.uniques {
            world.uniques.entry(key).or_insert(None);
        }
        for holder in self.holders {
            world.holders.entry(holder).or_insert(None);
        }
        for id in self.agents {
            world.agents.entry(id).or_insert(None);
        }
        world.whole.extend(self.live);
    }
}

/// The parameters of a load, one array per column.
#[derive(Default)]
struct Arrays {
    runs: Vec<Uuid>,
    jobs: (Vec<Uuid>, Vec<i64>),
    current: (Vec<Uuid>, Vec<i64>),
    attempts: (Vec<Uuid>, Vec<i64>, Vec<i64>),
    past: (Vec<Uuid>, Vec<i64>, Vec<i64>, Vec<i64>),
    live: Vec<Uuid>,
    keys: Vec<Vec<u8>>,
    uniques: Vec<Vec<u8>>,
    groups: Vec<Vec<u8>>,
    holders: (Vec<String>, Vec<String>),
    agents: Vec<String>,
}

impl Arrays {
    fn of(wanted: &Wanted) -> Arrays {
        let mut arrays = Arrays::default();
        arrays.runs.extend(wanted.runs.iter().map(|id| uuid(*id)));
        arrays.live.extend(wanted.live.iter().map(|id| uuid(*id)));
        arrays
            .keys
            .extend(wanted.keys.iter().map(|key| key.to_vec()));
        let uniques = wanted.uniques.iter().map(|key| key.to_vec());
        arrays.uniques.extend(uniques);
        let groups = wanted.groups.iter().map(|key| key.to_vec());
        arrays.groups.extend(groups);
        arrays.jobs = pairs(&wanted.jobs);
        arrays.current = pairs(&wanted.current);
        for id in &wanted.attempts {
            arrays.attempts.0.push(uuid(id.run()));
            arrays.attempts.1.push(id.job.n.into());
            arrays.attempts.2.push(id.index.into());
        }
        for key in &wanted.past {
            arrays.past.0.push(uuid(key.attempt.run()));
            arrays.past.1.push(key.attempt.job.n.into());
            arrays.past.2.push(key.attempt.index.into());
            arrays.past.3.push(column::signed(key.epoch));
        }
        for (principal, runner) in &wanted.holders {
            arrays.holders.0.push(escape(principal).into_owned());
            arrays.holders.1.push(escape(runner).into_owned());
        }
        let agents = wanted.agents.iter().map(|id| escape(id).into_owned());
        arrays.agents.extend(agents);
        arrays
    }

    /// The lock comes first: what follows is read under it.
    fn calls(&self, lock: Sql) -> Vec<Call<'_>> {
        let mut calls: Vec<Call<'_>> = Vec::new();
        if !self.runs.is_empty() {
            calls.push((lock, vec![&self.runs]));
            calls.push((Sql::Tips, vec![&self.runs]));
        }
        if !self.jobs.0.is_empty() {
            calls.push((Sql::Jobs, vec![&self.jobs.0, &self.jobs.1]));
        }
        if !self.current.0.is_empty() {
            calls.push((Sql::CurrentAttempts, vec![&self.current.0, &self.current.1]));
        }
        if !self.attempts.0.is_empty() {
            let (runs, jobs, indexes) = &self.attempts;
            calls.push((Sql::Attempts, vec![runs, jobs, indexes]));
        }
        if !self.past.0.is_empty() {
            let (runs, jobs, indexes, epochs) = &self.past;
            calls.push((Sql::PastLeases, vec![runs, jobs, indexes, epochs]));
        }
        if !self.live.is_empty() {
            calls.push((Sql::LiveJobs, vec![&self.live]));
            calls.push((Sql::LiveAttempts, vec![&self.live]));
        }
        if !self.keys.is_empty() {
            calls.push((Sql::Keys, vec![&self.keys]));
        }
        if !self.uniques.is_empty() {
            // Nobody else may look before this batch has written: what is not there yet has no row
            // that could be locked.
            calls.push((Sql::LockUniques, vec![&self.uniques]));
            calls.push((Sql::Uniques, vec![&self.uniques]));
        }
        if !self.groups.is_empty() {
            // Whose turn it is, one writer at a time decides.
            calls.push((Sql::LockUniques, vec![&self.groups]));
            calls.push((Sql::Line, vec![&self.groups]));
        }
        if !self.holders.0.is_empty() {
            calls.push((Sql::Holders, vec![&self.holders.0, &self.holders.1]));
        }
        if !self.agents.is_empty() {
            calls.push((Sql::Standings, vec![&self.agents]));
        }
        calls
    }
}

fn pairs(jobs: &BTreeSet<JobId>) -> (Vec<Uuid>, Vec<i64>) {
    jobs.iter()
        .map(|id| (uuid(id.run), i64::from(id.n)))
        .unzip()
}

impl PgStore {
    pub(super) fn load_wants(
        &mut self,
        wants: &BTreeSet<Want>,
        world: &mut World,
    ) -> Result<(), StoreError> {
        let wanted = Wanted::sort(wants, world);
        let arrays = Arrays::of(&wanted);
        // Behind a run that is locked already, waiting could be waiting in a circle: the run is
        // had at once or the batch starts again.
        let last = self
            .batch
            .as_ref()
            .and_then(|batch| batch.locked.last_key_value());
        let behind = last.is_some_and(|(last, _)| wanted.runs.first() < Some(last));
        let lock = if behind { Sql::LockAtOnce } else { Sql::Lock };
        let calls = arrays.calls(lock);
        if calls.is_empty() {
            return Ok(());
        }
        let answers = self.in_batch(async |session: &Session| session.ask(&calls).await)?;
        let batch = self
            .batch
            .as_mut()
            .expect("the batch was open a moment ago");
        let mut groups: BTreeMap<Digest, Members> = BTreeMap::new();
        for ((sql, _), rows) in calls.iter().zip(&answers) {
            for row in rows {
                if *sql == Sql::Line {
                    let (key, member) = rows::read_member(&mut Fields::of(row))?;
                    groups.entry(key).or_default().insert(member.id, member);
                    continue;
                }
                enter(*sql, row, batch, world)?;
            }
        }
        for key in &wanted.groups {
            world.put_group(*key, groups.remove(key).unwrap_or_default());
        }
        let found = |id: &RunId| batch.locked.contains_key(id);
        let absent: Vec<RunId> = wanted
            .runs
            .iter()
            .copied()
            .filter(|id| !found(id))
            .collect();
        batch.absent.extend(absent);
        wanted.close(world);
        Ok(())
    }
}

fn standing(fields: &mut Fields) -> Result<(Text, AgentStanding), StoreError> {
    let id = fields.text()?;
    let standing = AgentStanding {
        principal: fields.text()?,
        secret: fields.opt_bytes()?.map(column::digest).transpose()?,
        process: fields.opt_text()?,
        session: fields.unsigned()?,
        revoked: fields.truth()?,
    };
    Ok((id, standing))
}

fn enter(sql: Sql, row: &Row, batch: &mut Batch, world: &mut World) -> Result<(), StoreError> {
    let mut fields = Fields::of(row);
    match sql {
        Sql::Lock | Sql::LockAtOnce => {
            let run = rows::read_run(&mut fields)?;
            let locked = Locked {
                tip: Tip::NONE,
                project: run.header.project.clone(),
            };
            batch.locked.insert(run.id, locked);
            world
                .runs
                .entry(run.id)
                .or_insert_with(|| Some(Arc::new(run)));
        }
        Sql::Tips => {
            let (id, version, hash) = (fields.run()?, fields.unsigned()?, fields.digest()?);
            if let Some(locked) = batch.locked.get_mut(&id) {
                locked.tip = Tip { version, hash };
            }
        }
        Sql::Jobs | Sql::LiveJobs => {
            let job = rows::read_job(&mut fields)?;
            world
                .jobs
                .entry(job.id)
                .or_insert_with(|| Some(Arc::new(job)));
        }
        Sql::Attempts | Sql::CurrentAttempts | Sql::LiveAttempts => {
            let attempt = rows::read_attempt(&mut fields)?;
            world
                .attempts
                .entry(attempt.id)
                .or_insert_with(|| Some(Arc::new(attempt)));
        }
        Sql::PastLeases => {
            let id = fields.attempt()?;
            if let Some(lease) = rows::read_lease(&mut fields)? {
                let key = id.lease(lease.epoch);
                world.past_leases.entry(key).or_insert(Some(lease));
            }
        }
        Sql::Keys => {
            let (key, run) = (fields.digest()?, fields.run()?);
            world.keys.entry(key).or_insert(Some(run));
        }
        Sql::LockUniques => {}
        Sql::Uniques => {
            let (key, run) = (fields.digest()?, fields.run()?);
            world.uniques.entry(key).or_insert(Some(run));
        }
        Sql::Holders => {
            let holder = (unescape(fields.plain()?), unescape(fields.plain()?));
            let held = fields.attempt()?;
            world.holders.entry(holder).or_insert(Some(held));
        }
        Sql::Standings => {
            let (id, standing) = standing(&mut fields)?;
            world.agents.entry(id).or_insert(Some(standing));
        }
        other => unreachable!("{other:?} loads no rows"),
    }
    Ok(())
}
