//! Leases that are over and that a session does not know, found again in the store.
//!
//! An agent whose connection broke before the answer says its last word again on the next session
//! (A18, F5). Owns the question whether such a lease is the agent's at all; what becomes of the
//! message is the core's business. Another agent's lease is answered like one that never was
//! (T32).

use std::time::{Duration, Instant};

use delta_core::lease::Stale;
use delta_core::rights::same_digest;
use delta_core::{Attempt, Digest, Lease, LeaseKey, Millis, Text};
use delta_store::read::JobRows;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::{HeldLease, ResultStream};
use delta_wire::runner::LeaseToken;

use super::execution_id;
use super::held_lease::LateLogWindow;
use super::lease_table::{EndedLease, LOG_AFTER_END, StoredLease};
use super::receive::{Commands, MessageRefused};
use super::register::MAX_LISTED;
use super::session::Session;
use crate::app::App;
use crate::lease_rights;
use crate::not_done::NotDone;
use crate::writer::{Receipt, Shared, sha256};

/// A lease and the proof that is shown of it.
type ShownLease = (LeaseKey, Digest);

/// Those of the leases an agent lists that are its own and over.
pub async fn listed(
    app: &App,
    principal: &Text,
    agent: &Text,
    listed: &[HeldLease],
    live: &[StoredLease],
) -> Result<Vec<EndedLease>, NotDone> {
    let shown = listed.iter().filter_map(|it| shown(&it.run_id, &it.lease));
    let over = shown.filter(|(key, _)| !live.iter().any(|live| live.lease == *key));
    find(app, principal, agent, over.collect()).await
}

/// The lease that a message names and its token fits to.
fn shown(run_id: &str, lease: &str) -> Option<ShownLease> {
    let token = LeaseToken::from_text(lease).ok()?;
    let key: LeaseKey = token.locator()?.into();
    let fits = execution_id::lease(run_id) == Some(key);
    fits.then(|| (key, sha256(token.expose().as_bytes())))
}

async fn find(
    app: &App,
    principal: &Text,
    agent: &Text,
    mut shown: Vec<ShownLease>,
) -> Result<Vec<EndedLease>, NotDone> {
    if shown.is_empty() {
        return Ok(Vec::new());
    }
    shown.sort_unstable();
    let (principal, slots) = (principal.clone(), format!("{agent}/"));
    let now = app.writer.now();
    let jobs = app.read(move |reader| {
        let mut found: Vec<(ShownLease, JobRows)> = Vec::new();
        for it in shown {
            let rows = reader.job(it.0.attempt.job)?;
            found.extend(rows.map(|rows| (it, rows)));
        }
        Ok(found)
    });
    let shared = app.writer.shared();
    let past = jobs.await?.into_iter().filter_map(|((key, token), rows)| {
        let lease = lease_rights::named(&rows, key)?;
        let own = same_digest(&lease.token, &token)
            && lease.principal == principal
            && lease.runner.starts_with(&slots);
        own.then(|| past(key, lease, &rows, now, shared))
    });
    Ok(past.collect())
}

fn past(key: LeaseKey, lease: &Lease, rows: &JobRows, now: Millis, shared: &Shared) -> EndedLease {
    let latest = |attempt: &&Attempt| {
        let latest = attempt.lease.as_ref();
        attempt.id == key.attempt && latest.is_some_and(|it| it.epoch == key.epoch)
    };
    let latest = rows.attempts.iter().find(latest);
    let late = latest.and_then(|attempt| attempt.late_log(&shared.settings));
    // What a forced cancel leaves open is open over HTTP (A42).
    let late = late.and_then(|late| Some((late.until, late.up_to?)));
    let (log_length, left) = match late.filter(|(until, _)| now < *until) {
        Some((until, length)) => (
            length,
            Duration::from_millis(until.since(now).0.unsigned_abs()),
        ),
        None => (0, LOG_AFTER_END),
    };
    let why = match latest {
        Some(_) => lease.stale(now, shared.lease_floor),
        None => Some(Stale::Superseded),
    };
    EndedLease {
        lease: key,
        runner: lease.runner.clone(),
        token: lease.token,
        ended: LateLogWindow {
            log_length,
            until: Instant::now() + left,
        },
        // One that lives is not this session's: it is held by another of this agent's.
        why: why.unwrap_or(Stale::Unknown),
    }
}

impl Session {
    /// Keeps a result of a lease that this session does not know until it is looked up.
    pub(super) fn look_up_later(&mut self, said: ResultStream) -> Result<(), MessageRefused> {
        // An agent has no more than it may list.
        if self.unsure.len() >= MAX_LISTED || shown(&said.run_id, &said.lease).is_none() {
            return Err(MessageRefused::Stale);
        }
        let receipt = self.receipt();
        self.unsure.push((said, receipt));
        Ok(())
    }

    /// Finds the leases of such results, and hands on those that are this agent's.
    pub async fn look_up(&mut self) {
        let unsure = std::mem::take(&mut self.unsure);
        let named = unsure.iter();
        let named = named.filter_map(|(said, _)| shown(&said.run_id, &said.lease));
        let (principal, agent) = (&self.who.principal.id, &self.who.agent);
        let found = find(&self.app, principal, agent, named.collect()).await;
        let there = found.is_ok();
        for past in found.unwrap_or_default() {
            self.leases.remember(past);
        }
        let mut commands = Commands::new();
        for (said, receipt) in unsure {
            let done = if there {
                self.last_word_again(&said, receipt, &mut commands)
            } else {
                Err(MessageRefused::NotNow)
            };
            if let Err(refused) = done {
                self.refuse("ResultStream", said.run_id, &refused);
            }
        }
        self.command(commands);
    }

    fn last_word_again(
        &mut self,
        said: &ResultStream,
        receipt: Receipt,
        commands: &mut Commands,
    ) -> Result<(), MessageRefused> {
        let proven = self.proven(&said.run_id, &said.agent_id, &said.lease)?;
        match &said.payload {
            Some(Payload::RunComplete(complete)) => {
                self.run_complete(proven, complete, receipt, commands)
            }
            _ => Err(MessageRefused::Missing("payload")),
        }
    }
}
