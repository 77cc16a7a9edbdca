//! What a lease gives a right to, beside its messages: the work, artifacts, the log. Judged on
//! committed rows by the core's own rules (A25, A37, A38), whichever way the bytes come in.
//!
//! A lease that is over gives no right (LM-13), with one exception: its log.

use delta_core::command::LeaseProof;
use delta_core::lease::Stale;
use delta_core::{Lease, LeaseKey, Millis};
use delta_store::read::JobRows;

use crate::writer::Shared;

/// What a lease is shown for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To read the work; a grant that was not acknowledged yet will do.
    Spec,
    Artifact,
    /// The values of secrets that the policy names (A51).
    Secrets,
    Results,
    /// The one right that outlives the lease: for a moment after a forced cancel (A42), and for the
    /// rest of what was declared (I25).
    Log,
}

/// How much of a log may be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRight {
    /// No byte beyond this one; the quota alone decides when absent.
    pub up_to: Option<u64>,
}

impl LogRight {
    pub fn covers(self, offset: u64, length: usize) -> bool {
        let end = offset.saturating_add(length as u64);
        self.up_to.is_none_or(|up_to| end <= up_to)
    }
}

/// The lease of a proof, if it gives this right at this moment.
pub fn judge<'a>(
    rows: &'a JobRows,
    proof: &LeaseProof,
    right: Right,
    now: Millis,
    shared: &Shared,
) -> Result<(&'a Lease, LogRight), Stale> {
    let own = |lease: &&Lease| {
        lease.epoch == proof.key.epoch
            && lease.token == proof.token
            && lease.principal == proof.principal
    };
    let attempt = rows.attempts.iter().find(|it| it.id == proof.key.attempt);
    let current = attempt.and_then(|attempt| Some((attempt, attempt.lease.as_ref().filter(own)?)));
    let Some((attempt, lease)) = current else {
        let past = rows.past_leases.iter();
        let mut past = past.filter(|(id, _)| *id == proof.key.attempt);
        let superseded = past.any(|(_, lease)| own(&lease));
        return Err(if superseded {
            Stale::Superseded
        } else {
            Stale::Unknown
        });
    };
    let late = attempt.late_log(&shared.settings);
    let late = late.filter(|late| right == Right::Log && now < late.until);
    match (lease.stale(now, shared.lease_floor), late) {
        (None, _) => Ok((lease, LogRight { up_to: None })),
        (Some(_), Some(late)) => Ok((lease, LogRight { up_to: late.up_to })),
        (Some(why), None) => Err(why),
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
