//! Who did what, and who tried: one line each under the log target `audit`.
//!
//! Owns the words of these lines. They name people and runners by the public id of their token,
//! leases by attempt and epoch; a secret is never in one of them.

use delta_core::command::LeaseProof;
use delta_core::lease::Stale;
use delta_core::rights::Barred;
use delta_core::{Command, Lease, LeaseKey, Reply, Text, World};

use crate::identity::Principal;

/// Somebody with the right to do so did something.
pub fn done(action: &'static str, by: &Principal, what: &str) {
    tracing::info!(target: "audit", action, by = %by.id, by_role = by.role.name(), what);
}

/// Somebody we know asked for something beyond its role.
pub fn forbidden(by: &Principal, needed: &'static str) {
    tracing::warn!(target: "audit", action = "forbidden", by = %by.id,
        by_role = by.role.name(), needed);
}

/// Somebody who was good is so no more, in the middle of what it did.
pub fn ended(who: &Principal, why: &'static str) {
    tracing::info!(target: "audit", action = "ended", by = %who.id, why);
}

/// An enrolment that was good for one agent is shown again: a copy of it is in other hands.
pub fn enrolment_reused(by: &Principal, agent: &str) {
    tracing::error!(target: "audit", action = "enrolment.reused", by = %by.id, agent,
        "an enrolment token was shown again; look whether the agent it let in is yours");
}

/// A credential of one agent is used under the name of another.
pub fn foreign_agent(by: &Principal, agent: &str) {
    let own = by.agent.as_deref().unwrap_or_default();
    tracing::warn!(target: "audit", action = "foreign_agent", by = %by.id, own, agent);
}

/// The holder of a lease was given values of secrets, or was not: their names, never a value.
pub fn secrets(action: &'static str, by: &Principal, lease: LeaseKey, names: &[Text]) {
    let LeaseKey { attempt, epoch } = lease;
    let names = names.join(",");
    tracing::info!(target: "audit", action, by = %by.id, %attempt, epoch, names);
}

/// The holder of a lease is not heard any more, or is not the agent that has it (I23, T3).
pub fn barred(why: Barred, lease: LeaseKey, proof: &LeaseProof) {
    let LeaseKey { attempt, epoch } = lease;
    tracing::warn!(target: "audit", action = "barred", by = %proof.principal,
        why = ?why, %attempt, epoch);
}

/// A message about a lease that an honest holder does not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noticed {
    action: &'static str,
    lease: LeaseKey,
    by: Text,
    runner: Text,
    holder: Text,
}

impl Noticed {
    /// What is odd about a message, by what it was answered (A18, A25).
    pub fn in_answer(world: &World, command: &Command, reply: &Reply) -> Option<Noticed> {
        let (proof, closes) = match command {
            Command::Complete { proof, .. } | Command::CancelAck { proof, .. } => (proof, true),
            Command::AckLease { proof, .. }
            | Command::Heartbeat { proof, .. }
            | Command::Decline { proof } => (proof, false),
            _ => return None,
        };
        let lease = lease(world, proof.key)?;
        match reply {
            Reply::Stale(Stale::Unknown) => Some(Noticed::of_unknown(lease, proof)),
            Reply::Stale(Stale::AlreadyFinal) if closes => {
                Some(Noticed::of("another_result", lease, proof))
            }
            _ => None,
        }
    }

    /// A proof that names a lease and does not fit it.
    pub fn of_unknown(lease: &Lease, proof: &LeaseProof) -> Noticed {
        let foreign = lease.principal != proof.principal;
        let action = if foreign {
            "foreign_lease"
        } else {
            "forged_lease"
        };
        Noticed::of(action, lease, proof)
    }

    fn of(action: &'static str, lease: &Lease, proof: &LeaseProof) -> Noticed {
        Noticed {
            action,
            lease: proof.key,
            by: proof.principal.clone(),
            runner: proof.runner.clone(),
            holder: lease.principal.clone(),
        }
    }

    pub fn log(&self) {
        let LeaseKey { attempt, epoch } = self.lease;
        tracing::warn!(target: "audit", action = self.action, by = %self.by,
            runner = %self.runner, holder = %self.holder, %attempt, epoch);
    }
}

fn lease(world: &World, key: LeaseKey) -> Option<&Lease> {
    let attempt = world.attempts.get(&key.attempt)?.as_ref()?;
    let latest = attempt.lease.as_ref();
    latest
        .filter(|lease| lease.epoch == key.epoch)
        .or_else(|| world.past_leases.get(&key)?.as_ref())
}
