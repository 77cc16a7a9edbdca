//! What people and tools are shown of a log: how much of it there is, whether that is all, and the
//! events of a live tail.
//!
//! Bytes of a log are untrusted and need not be text: a tail carries them in base64.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a log can still grow, and if not, whether it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogState {
    /// Its lease is live.
    Open,
    /// Everything the runner wrote is here.
    Complete,
    /// Something is missing, or nobody can say that nothing is.
    Incomplete,
}

/// What is stored of an attempt's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogView {
    /// The runner's bytes that can be read.
    pub length: u64,
    pub state: LogState,
    /// Everything the runner wrote is here.
    pub complete: bool,
    /// Bytes the runner had and the server has not, as far as the runner said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<u64>,
    /// The work printed more than is kept of a log; a line in it says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Bytes that were cut out, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

/// In the words of the API: `open`, `complete`, `incomplete`, `incomplete: 5 bytes missing`,
/// `cut: 5 bytes dropped`.
impl std::fmt::Display for LogView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.state {
            LogState::Open => return f.write_str("open"),
            LogState::Complete => return f.write_str("complete"),
            LogState::Incomplete => {}
        }
        match (self.cut, self.missing) {
            (false, None) => f.write_str("incomplete"),
            (false, Some(missing)) => write!(f, "incomplete: {missing} bytes missing"),
            (true, missing) => {
                f.write_str("cut")?;
                if let Some(dropped) = self.dropped {
                    write!(f, ": {dropped} bytes dropped")?;
                }
                match missing {
                    Some(missing) => write!(f, ", {missing} bytes missing"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// A place in the logs of a job, and the id of an event: `<attempt>.<epoch>.<offset>`, where the
/// offset is that of the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlace {
    pub attempt: u32,
    /// Of the lease whose log it is.
    pub epoch: u64,
    pub offset: u64,
}

impl std::fmt::Display for LogPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.attempt, self.epoch, self.offset)
    }
}

impl std::str::FromStr for LogPlace {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<LogPlace, Self::Err> {
        let mut parts = text.splitn(3, '.');
        let mut next = || parts.next().unwrap_or_default();
        Ok(LogPlace {
            attempt: next().parse()?,
            epoch: next().parse()?,
            offset: next().parse()?,
        })
    }
}

/// The event `log` of a tail: the bytes that follow are of this lease, from this offset on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogBegin {
    pub attempt: u32,
    /// The n-th lease of the job.
    pub lease: u64,
    pub epoch: u64,
    pub offset: u64,
}

/// The event `end` of a tail: this log is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogEnd {
    /// Absent when nobody ever ran the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogView>,
    /// Nothing follows: the job, or the attempt that was asked for, is over.
    pub last: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_whole_a_log_is_is_said_in_few_words() {
        let said = |state, missing, cut, dropped| {
            let view = LogView {
                length: 1,
                state,
                complete: state == LogState::Complete,
                missing,
                cut,
                dropped,
            };
            view.to_string()
        };
        use LogState::{Complete, Incomplete, Open};
        assert_eq!(said(Open, None, true, Some(1)), "open");
        assert_eq!(said(Complete, None, false, None), "complete");
        assert_eq!(said(Incomplete, None, false, None), "incomplete");
        let missing = said(Incomplete, Some(5), false, None);
        assert_eq!(missing, "incomplete: 5 bytes missing");
        assert_eq!(
            said(Incomplete, None, true, Some(7)),
            "cut: 7 bytes dropped"
        );
        assert_eq!(said(Incomplete, None, true, None), "cut");
        let both = said(Incomplete, Some(5), true, Some(7));
        assert_eq!(both, "cut: 7 bytes dropped, 5 bytes missing");
    }

    #[test]
    fn a_place_is_read_as_it_is_written() {
        let place = LogPlace {
            attempt: 2,
            epoch: 4_294_967_299,
            offset: 17,
        };
        assert_eq!(place.to_string(), "2.4294967299.17");
        assert_eq!(place.to_string().parse(), Ok(place));
        for odd in ["", "1", "1.2", "1.2.3.4", "1.2.x", "-1.2.3"] {
            assert!(odd.parse::<LogPlace>().is_err(), "{odd}");
        }
    }
}
