//! The id of one execution on the wire: what the protocol calls `run_id` (A30).
//!
//! It names a lease and proves nothing; the token that travels beside it does.

use delta_core::{LeaseKey, RunId};

/// `exec_<run>_<job>_<attempt>_<epoch>`
pub fn name(lease: LeaseKey) -> String {
    let attempt = lease.attempt;
    let RunId(run) = attempt.run();
    let (job, index, epoch) = (attempt.job.n, attempt.index, lease.epoch);
    format!("exec_{run:032x}_{job}_{index}_{epoch}")
}

/// Which lease an id names; nothing when it is none of ours.
pub fn lease(name: &str) -> Option<LeaseKey> {
    let mut parts = name.strip_prefix("exec_")?.split('_');
    let run = u128::from_str_radix(parts.next()?, 16).ok()?;
    let job = parts.next()?.parse().ok()?;
    let attempt = parts.next()?.parse().ok()?;
    let epoch = parts.next()?.parse().ok()?;
    let lease = RunId(run).job(job).attempt(attempt).lease(epoch);
    // One spelling each, so that names can be compared.
    (parts.next().is_none() && self::name(lease) == name).then_some(lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_and_has_one_spelling() {
        let key = RunId(0xabc).job(3).attempt(2).lease(4_294_967_297);
        assert_eq!(lease(&name(key)), Some(key));
        for bad in ["", "exec_", "exec_1_2_3", "run_1"] {
            assert_eq!(lease(bad), None, "{bad}");
        }
        assert_eq!(lease(&name(key).replace("_3_", "_03_")), None);
    }
}
