//! Matching slots that wait with attempts that are queued, inside the batch (D2): a job enqueued
//! now is granted now, in the same commit.
//!
//! Two sources of work: what this batch itself queued, which the store cannot show yet, and the
//! store's queue. The store is asked only for groups nobody looked for yet, or after a wake-up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use delta_core::lease::{LeaseState, epoch};
use delta_core::requirement::queue_of;
use delta_core::{
    Attempt, AttemptId, Command, JobId, LeaseKey, Millis, Refusal, Reply, Run, RunId, Span, Text,
    Want,
};
use delta_store::{Claim, StoreError};
use delta_wire::runner::LeaseToken;

use super::batch::Batch;
use super::parking::{Group, Parking, SlotId};
use super::{random, sha256};
use crate::not_done::NotDone;

/// Grants of one batch: what a batch of commands holds, so that a flood of parked slots does not
/// delay the answers of everybody else.
const MAX_GRANTS: usize = 256;

/// Where the source of a run is.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    pub repository: Option<Text>,
    pub git_ref: Option<Text>,
    pub commit: Option<Text>,
}

impl Origin {
    fn of(run: &Run) -> Origin {
        Origin {
            repository: run.header.repository.clone(),
            git_ref: run.header.git_ref.clone(),
            commit: run.header.commit.clone(),
        }
    }
}

/// A grant that is decided but not yet committed.
pub(super) struct Given {
    pub slot: SlotId,
    pub token: LeaseToken,
    pub lease: LeaseKey,
    pub ttl: Span,
    pub max_runtime: Span,
    pub spec: Arc<str>,
    pub name: Text,
    pub priority: i32,
    pub trusted: bool,
    /// Names of the secrets it may fetch.
    pub secrets: Vec<Text>,
    pub origin: Origin,
    /// Since when it had waited for this.
    pub waits_since: Option<Millis>,
}

/// What a batch has for its slots.
#[derive(Default)]
pub(super) struct Matches {
    pub given: Vec<Given>,
    pub refused: Vec<(SlotId, NotDone)>,
    /// More could be granted than one batch grants: go on at once.
    pub more: bool,
}

impl Matches {
    fn is_settled(&self, slot: SlotId) -> bool {
        self.given.iter().any(|given| given.slot == slot)
            || self.refused.iter().any(|(refused, _)| *refused == slot)
    }
}

/// Grants what can be granted. `asked` are the slots that came with this batch.
pub(super) fn match_slots(
    batch: &mut Batch,
    parking: &mut Parking,
    asked: &[SlotId],
    wake: bool,
) -> Result<Matches, StoreError> {
    let mut matches = Matches::default();
    answer_holders(batch, parking, asked, &mut matches)?;
    let pairs = pair(batch, parking, wake, &mut matches)?;
    give(batch, parking, pairs, &mut matches)?;
    matches.more |= matches.given.len() >= MAX_GRANTS;
    Ok(matches)
}

/// Slots that already hold a lease: an unacknowledged one is given anew, an active one makes the
/// runner busy.
fn answer_holders(
    batch: &mut Batch,
    parking: &Parking,
    asked: &[SlotId],
    matches: &mut Matches,
) -> Result<(), StoreError> {
    let holders: Vec<(SlotId, (Text, Text))> = asked
        .iter()
        .filter_map(|id| Some((*id, holder(parking, *id)?)))
        .collect();
    let wants = holders
        .iter()
        .map(|(_, (p, r))| Want::Holder(p.clone(), r.clone()));
    batch.load(&wants.collect())?;
    let mut again = Vec::new();
    for (slot, holder) in holders {
        let Some(held) = batch.world.holders.get(&holder).copied().flatten() else {
            continue;
        };
        batch.load(&BTreeSet::from([
            Want::Run(held.run()),
            Want::Job(held.job),
            Want::Attempt(held),
        ]))?;
        match holding(batch, held) {
            Holding::Expired => {
                let at = batch.shared.horizon();
                let _ = batch.decide(at, &Command::AttemptDue { attempt: held }, &[])?;
            }
            Holding::Granted => again.push((slot, held)),
            Holding::Active => {
                matches
                    .refused
                    .push((slot, Refusal::RunnerBusy(held).into()));
            }
        }
    }
    give(batch, parking, again, matches)
}

enum Holding {
    Granted,
    Active,
    /// Its time is over and the sweep has not been by.
    Expired,
}

fn holding(batch: &Batch, id: AttemptId) -> Holding {
    let lease = batch.attempt(id).and_then(Attempt::live_lease);
    match lease {
        Some(lease) => {
            let granted = lease.state == LeaseState::Granted;
            let end = if granted {
                lease.expires_at.min(lease.ack_by)
            } else {
                lease.expires_at
            };
            match batch.shared.horizon() >= end.max(batch.shared.lease_floor) {
                true => Holding::Expired,
                false if granted => Holding::Granted,
                false => Holding::Active,
            }
        }
        None => Holding::Expired,
    }
}

fn holder(parking: &Parking, id: SlotId) -> Option<(Text, Text)> {
    let slot = parking.get(id)?;
    Some((slot.principal.clone(), slot.runner.clone()))
}

/// Who gets what, the longest waiting group first and the queue's order inside it.
fn pair(
    batch: &mut Batch,
    parking: &mut Parking,
    wake: bool,
    matches: &mut Matches,
) -> Result<Vec<(SlotId, AttemptId)>, StoreError> {
    if parking.groups.is_empty() {
        return Ok(Vec::new());
    }
    let paused = batch.shared.paused();
    let mut queued = queued_here(batch);
    queued.retain(|(_, _, key)| !is_paused(&paused, key));
    let mut keys: Option<Vec<Text>> = None;
    let mut taken: BTreeSet<AttemptId> = BTreeSet::new();
    let mut pairs = Vec::new();
    for name in parking.groups_in_order() {
        let Some(group) = parking.groups.get_mut(&name) else {
            continue;
        };
        let look = wake || group.unserved;
        let mut found: BTreeSet<(i64, AttemptId)> = BTreeSet::new();
        let fit = queued.iter().filter(|(_, _, key)| group.fits(key));
        found.extend(fit.map(|(order, id, _)| (*order, *id)));
        if found.is_empty() && !look {
            continue;
        }
        let room = MAX_GRANTS.saturating_sub(pairs.len() + matches.given.len());
        if room == 0 {
            matches.more = true;
            break;
        }
        let mut slots = parking.listening(&name, room);
        slots.retain(|slot| !matches.is_settled(*slot));
        let Some(group) = parking.groups.get_mut(&name).filter(|_| !slots.is_empty()) else {
            continue;
        };
        if look {
            if keys.is_none() {
                let mut all = batch.store.match_keys()?;
                all.retain(|key| !is_paused(&paused, key));
                keys = Some(all);
            }
            let known = keys.as_deref().unwrap_or_default();
            let claimed = match claim(batch, group, slots.len(), &taken, known) {
                Ok(claimed) => claimed,
                // Something at the head of the queue cannot be read. That must not fail those who
                // hold leases; the next look is at the next wake-up.
                Err(StoreError::Corrupt(why)) => {
                    tracing::error!(why, "a queued attempt cannot be read");
                    Vec::new()
                }
                Err(other) => return Err(other),
            };
            // With work left over the group is looked for again; with slots left over it is not.
            group.unserved = claimed.len() >= slots.len();
            found.extend(claimed);
        }
        for ((_, id), slot) in found.into_iter().zip(slots) {
            taken.insert(id);
            pairs.push((slot, id));
        }
        queued.retain(|(_, id, _)| !taken.contains(id));
    }
    Ok(pairs)
}

/// Picks from the store's queue what fits a group, with each attempt's place in the order.
fn claim(
    batch: &mut Batch,
    group: &mut Group,
    limit: usize,
    taken: &BTreeSet<AttemptId>,
    keys: &[Text],
) -> Result<Vec<(i64, AttemptId)>, StoreError> {
    let fit = keys.iter().filter(|key| group.fits(key));
    let claim = Claim {
        keys: fit.cloned().collect(),
        limit,
        skip: skip(batch, taken),
    };
    if claim.keys.is_empty() {
        return Ok(Vec::new());
    }
    let ids = batch.store.claim(&claim, &mut batch.world)?;
    let order = |id: AttemptId| batch.attempt(id).map_or(0, |attempt| attempt.order_key);
    Ok(ids.into_iter().map(|id| (order(id), id)).collect())
}

fn is_paused(paused: &BTreeSet<Text>, key: &str) -> bool {
    !paused.is_empty() && queue_of(key).is_some_and(|queue| paused.contains(queue))
}

/// Attempts this batch queued, with the requirements of their jobs.
fn queued_here(batch: &Batch) -> Vec<(i64, AttemptId, Text)> {
    let queued = batch.queued().filter_map(|attempt| {
        let job = batch.world.jobs.get(&attempt.id.job)?.as_ref()?;
        Some((attempt.order_key, attempt.id, job.policy.requires.clone()))
    });
    queued.collect()
}

/// The store does not know what this batch did to these.
fn skip(batch: &Batch, taken: &BTreeSet<AttemptId>) -> BTreeSet<AttemptId> {
    let edited = batch.writes.edits.attempts.keys().copied();
    edited.chain(taken.iter().copied()).collect()
}

/// Decides the grants, each on its own.
fn give(
    batch: &mut Batch,
    parking: &Parking,
    pairs: Vec<(SlotId, AttemptId)>,
    matches: &mut Matches,
) -> Result<(), StoreError> {
    if pairs.is_empty() {
        return Ok(());
    }
    let mut wants = BTreeSet::new();
    for (slot, _) in &pairs {
        wants.extend(holder(parking, *slot).map(|(p, r)| Want::Holder(p, r)));
    }
    batch.load(&wants)?;
    let specs = specs(batch, &pairs)?;
    for (slot, id) in pairs {
        let (Some(spec), Some((principal, runner))) = (specs.get(&id.job), holder(parking, slot))
        else {
            continue;
        };
        let waits_since = batch.attempt(id).and_then(waits_since);
        match grant(batch, id, principal, runner)? {
            Ok((token, lease, ttl, max_runtime)) => {
                let job = batch.world.jobs.get(&id.job).and_then(Option::as_deref);
                let run = batch.world.runs.get(&id.run()).and_then(Option::as_deref);
                matches.given.push(Given {
                    slot,
                    token,
                    lease,
                    ttl,
                    max_runtime,
                    spec: spec.clone(),
                    name: job.map_or_else(|| "".into(), |job| job.name.clone()),
                    priority: job.map_or(0, |job| job.policy.priority),
                    trusted: run.is_some_and(|run| run.header.trusted),
                    secrets: job.map_or_else(Vec::new, |job| job.policy.secrets.clone()),
                    origin: run.map(Origin::of).unwrap_or_default(),
                    waits_since,
                });
            }
            // Not to be had after all: the slot goes on waiting.
            Err(NotDone::Refused(Refusal::NotQueued(_))) => {}
            Err(why) => matches.refused.push((slot, why)),
        }
    }
    Ok(())
}

/// A run past its limit ends here rather than at the next sweep: nothing of it is granted (A54).
fn end_if_over(batch: &mut Batch, run: RunId) -> Result<(), StoreError> {
    let at = batch.shared.horizon();
    let known = batch.world.runs.get(&run).and_then(Option::as_deref);
    if known.and_then(Run::due_at).is_some_and(|due| at >= due) {
        let _ = batch.decide(at, &Command::RunDue { run }, &[])?;
    }
    Ok(())
}

/// Since when nobody had it: since it was queued, or its last lease ended.
fn waits_since(attempt: &Attempt) -> Option<Millis> {
    let lost_at = attempt.lease.as_ref().and_then(|lease| lease.ended_at);
    attempt.queued_at.max(lost_at)
}

type Granted = (LeaseToken, LeaseKey, Span, Span);

fn grant(
    batch: &mut Batch,
    id: AttemptId,
    principal: Text,
    runner: Text,
) -> Result<Result<Granted, NotDone>, StoreError> {
    end_if_over(batch, id.run())?;
    let number = batch.attempt(id).map_or(0, |attempt| attempt.lease_number) + 1;
    let epoch = epoch(batch.shared.settings.incarnation, number);
    let token = LeaseToken::for_lease(id.lease(epoch), random());
    let command = Command::Grant {
        attempt: id,
        principal,
        runner,
        token: sha256(token.expose().as_bytes()),
        epoch,
    };
    let now = batch.shared.clock.now();
    let answer = batch.decide(now, &command, &[])?;
    Ok(answer.and_then(|answer| match answer.reply {
        Reply::Granted {
            lease,
            ttl,
            max_runtime,
            ..
        } => Ok((token, lease, ttl, max_runtime)),
        _ => Err(NotDone::Internal),
    }))
}

/// The specs of the jobs to be granted. One that cannot be read keeps only its own job from being
/// granted.
fn specs(
    batch: &mut Batch,
    pairs: &[(SlotId, AttemptId)],
) -> Result<BTreeMap<JobId, Arc<str>>, StoreError> {
    let mut found: BTreeMap<JobId, Arc<str>> = BTreeMap::new();
    let wanted: BTreeSet<JobId> = pairs.iter().map(|(_, id)| id.job).collect();
    for (job, spec) in &batch.writes.specs {
        if wanted.contains(job) {
            found.insert(*job, spec.clone());
        }
    }
    let stored: Vec<JobId> = wanted
        .into_iter()
        .filter(|job| !found.contains_key(job))
        .collect();
    if stored.is_empty() {
        return Ok(found);
    }
    match batch.store.specs(&stored) {
        Ok(specs) => found.extend(stored.into_iter().zip(specs)),
        Err(StoreError::Corrupt(_)) => {
            for job in stored {
                match batch.store.specs(&[job]) {
                    Ok(mut one) => found.extend(one.pop().map(|spec| (job, spec))),
                    Err(StoreError::Corrupt(why)) => {
                        tracing::error!(%job, why, "the spec of a queued job cannot be read");
                    }
                    Err(other) => return Err(other),
                }
            }
        }
        Err(other) => return Err(other),
    }
    Ok(found)
}
