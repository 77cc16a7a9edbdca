//! Names of things. A job is addressed inside its run and an attempt inside its job, so that every
//! message says which run it touches before anything is looked up: the run is the unit of locking.

use std::fmt;
use std::str::FromStr;

/// A run: 128 bits, made outside (a UUIDv7, so that ids sort by creation).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u128);

/// A job: the `n`-th of its run, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    pub run: RunId,
    pub n: u32,
}

/// An attempt: the `index`-th try of its job, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    pub job: JobId,
    pub index: u32,
}

/// A lease: an attempt and the epoch under which it was granted (A60, A72).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    pub attempt: AttemptId,
    pub epoch: u64,
}

impl RunId {
    pub fn job(self, n: u32) -> JobId {
        JobId { run: self, n }
    }
}

impl JobId {
    pub fn attempt(self, index: u32) -> AttemptId {
        AttemptId { job: self, index }
    }
}

impl AttemptId {
    pub fn run(self) -> RunId {
        self.job.run
    }

    pub fn lease(self, epoch: u64) -> LeaseKey {
        LeaseKey {
            attempt: self,
            epoch,
        }
    }
}

/// Why a text is not an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadId;

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id: expected run_<32 hex digits> or job_<32 hex digits>_<number>")
    }
}

impl std::error::Error for BadId {}

fn hex128(text: &str) -> Result<u128, BadId> {
    let plain = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !plain {
        return Err(BadId);
    }
    u128::from_str_radix(text, 16).map_err(|_| BadId)
}

impl FromStr for RunId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<RunId, BadId> {
        hex128(text.strip_prefix("run_").ok_or(BadId)?).map(RunId)
    }
}

impl FromStr for JobId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<JobId, BadId> {
        let (run, n) = text
            .strip_prefix("job_")
            .ok_or(BadId)?
            .split_once('_')
            .ok_or(BadId)?;
        let canonical = !n.starts_with('0') && n.bytes().all(|b| b.is_ascii_digit());
        if !canonical {
            return Err(BadId);
        }
        Ok(JobId {
            run: RunId(hex128(run)?),
            n: n.parse().map_err(|_| BadId)?,
        })
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run_{:032x}", self.0)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job_{:032x}_{}", self.run.0, self.n)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.job, self.index)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_what_they_print() {
        let job = RunId(0xfeed).job(12);
        assert_eq!(job.to_string().parse::<JobId>(), Ok(job));
        assert_eq!(job.run.to_string().parse::<RunId>(), Ok(job.run));
    }

    #[test]
    fn only_the_canonical_form_is_an_id() {
        for text in [
            "",
            "run_",
            "run_12",
            "../etc",
            "job_x_1",
            "RUN_0",
            "@/etc/passwd",
        ] {
            assert_eq!(text.parse::<RunId>(), Err(BadId), "{text}");
        }
        let run = "0".repeat(31) + "1";
        for tail in ["0", "01", "-1", "+1", "4294967296", "", "1_1"] {
            assert_eq!(
                format!("job_{run}_{tail}").parse::<JobId>(),
                Err(BadId),
                "{tail}"
            );
        }
        assert_eq!(
            format!("run_{}", "A".repeat(32)).parse::<RunId>(),
            Err(BadId)
        );
    }
}
