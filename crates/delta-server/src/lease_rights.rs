//! The committed rows that the rights of a lease are judged on, whichever way the bytes come in.
//!
//! Owns the finding; the rule is the core's ([`delta_core::rights`]) and the same as for messages.

use delta_core::command::LeaseProof;
use delta_core::lease::Stale;
use delta_core::rights::{AgentStanding, Bond, Denied, LogRight, Right};
use delta_core::{Lease, LeaseKey, Millis};
use delta_store::StoreError;
use delta_store::read::{JobRows, Reader};

use crate::writer::Shared;

/// What a proof is judged by: the rows of its job, and how the agent behind it stands.
pub struct Evidence {
    pub rows: Option<JobRows>,
    agent: Option<AgentStanding>,
}

impl Evidence {
    pub fn find(reader: &dyn Reader, proof: &LeaseProof) -> Result<Evidence, StoreError> {
        let rows = reader.job(proof.key.attempt.job)?;
        let lease = rows.as_ref().and_then(|rows| named(rows, proof.key));
        let agent = lease.and_then(|lease| proof.speaker.agent(&lease.runner));
        let agent = match agent {
            Some(id) => reader.agent(&id)?.map(|row| row.standing()),
            None => None,
        };
        Ok(Evidence { rows, agent })
    }

    /// The lease that the proof names, whosever it is.
    pub fn named(&self, key: LeaseKey) -> Option<&Lease> {
        named(self.rows.as_ref()?, key)
    }

    /// The lease of a proof, if it gives this right at this moment.
    pub fn judge(
        &self,
        proof: &LeaseProof,
        right: Right,
        now: Millis,
        shared: &Shared,
    ) -> Result<(&Lease, LogRight), Denied> {
        let rows = self.rows.as_ref().ok_or(Denied::Stale(Stale::Unknown))?;
        let attempt = rows.attempts.iter().find(|it| it.id == proof.key.attempt);
        let latest = attempt.and_then(|attempt| Some((attempt, attempt.lease.as_ref()?)));
        let latest = latest.filter(|(_, lease)| lease.epoch == proof.key.epoch);
        let agent = self.agent.as_ref();
        if let Some((attempt, lease)) = latest {
            let bond = Bond::of(
                lease,
                shared.lease_floor,
                attempt.late_log(&shared.settings),
            );
            let given = bond.gives(right, proof, agent, now)?;
            return Ok((lease, given));
        }
        let past = self.named(proof.key).ok_or(Denied::Stale(Stale::Unknown))?;
        Bond::of(past, shared.lease_floor, None).is_held_by(proof, agent)?;
        Err(Denied::Stale(Stale::Superseded))
    }
}

/// The lease that a token's front names, whosever it is.
pub fn named(rows: &JobRows, key: LeaseKey) -> Option<&Lease> {
    let latest = rows.attempts.iter().filter(|it| it.id == key.attempt);
    let latest = latest.filter_map(|it| it.lease.as_ref());
    let past = rows.past_leases.iter().filter(|(id, _)| *id == key.attempt);
    let mut all = latest.chain(past.map(|(_, lease)| lease));
    all.find(|lease| lease.epoch == key.epoch)
}
