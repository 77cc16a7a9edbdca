//! The id of one execution on the wire: what the protocol calls `run_id` (A30).
//!
//! It names a lease and proves nothing; the token that travels beside it does.

use std::str::FromStr;

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
    let run = run(parts.next()?)?;
    let job = number(parts.next()?)?;
    let attempt = number(parts.next()?)?;
    let epoch = number(parts.next()?)?;
    let lease = RunId(run).job(job).attempt(attempt).lease(epoch);
    parts.next().is_none().then_some(lease)
}

// One spelling each, so that names can be compared.

fn run(text: &str) -> Option<u128> {
    let plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let fits = text.len() == 32 && text.bytes().all(plain);
    fits.then(|| u128::from_str_radix(text, 16).ok())?
}

fn number<N: FromStr>(text: &str) -> Option<N> {
    let plain = text == "0" || !text.starts_with(['0', '+', '-']);
    plain.then(|| text.parse().ok())?
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
        let (hex, rest) = (format!("{:032x}", 0xabc), "_3_2_4294967297");
        assert_eq!(lease(&format!("exec_{hex}{rest}")), Some(key));
        let other = [
            format!("exec_{}{rest}", hex.to_uppercase()),
            format!("exec_{}{rest}", &hex[1..]),
            format!("exec_+{}{rest}", &hex[1..]),
            format!("exec_0{hex}{rest}"),
            format!("exec_{hex}_03_2_4294967297"),
            format!("exec_{hex}_+3_2_4294967297"),
            format!("exec_{hex}_3_-2_4294967297"),
            format!("exec_{hex}_3_2_"),
            format!("exec_{hex}{rest}_"),
        ];
        for spelling in &other {
            assert_eq!(lease(spelling), None, "{spelling}");
        }
        let zero = RunId(u128::MAX).job(0).attempt(0).lease(0);
        assert_eq!(lease(&name(zero)), Some(zero));
    }
}
