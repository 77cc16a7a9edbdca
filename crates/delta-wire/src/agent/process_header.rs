//! The header by which an agent's process shows itself in a request: `Delta-Agent: PROCESS SECRET`,
//! or the process alone where the credential is this agent's and nobody else's.
//!
//! Owns its spelling, for both ends. The secret is the one that the first registration gave; it is
//! in a header as the credential is, and never in a URL, a log or `Debug` output.

use crate::Invalid;
use crate::api::tokens::is_agent_id;

/// The header's name.
pub const AGENT_HEADER: &str = "delta-agent";
/// Characters of a secret: several times those of ours.
const MAX_SECRET: usize = 512;

/// What a request shows of the agent that makes it.
#[derive(Clone, PartialEq, Eq)]
pub struct Shown {
    /// What the registration calls `instance`.
    pub process: String,
    pub secret: Option<String>,
}

impl Shown {
    pub fn from_text(text: &str) -> Result<Shown, Invalid> {
        let (process, secret) = match text.split_once(' ') {
            Some((process, secret)) => (process, Some(secret)),
            None => (text, None),
        };
        let printable = |secret: &str| secret.bytes().all(|byte| byte.is_ascii_graphic());
        let fits = |secret: &str| (1..=MAX_SECRET).contains(&secret.len()) && printable(secret);
        if !is_agent_id(process) || !secret.is_none_or(fits) {
            let words = "is the instance of a registration, and behind a space its resume secret";
            return Err(Invalid::field("Delta-Agent", words));
        }
        Ok(Shown {
            process: process.to_owned(),
            secret: secret.map(str::to_owned),
        })
    }

    /// As it stands in the header.
    pub fn expose(&self) -> String {
        match &self.secret {
            Some(secret) => format!("{} {secret}", self.process),
            None => self.process.clone(),
        }
    }
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shown({})", self.process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_shows_is_read_as_it_was_written() {
        for (process, secret) in [("p1", None), ("p1", Some("resume_00ff"))] {
            let shown = Shown {
                process: process.to_owned(),
                secret: secret.map(str::to_owned),
            };
            assert_eq!(Shown::from_text(&shown.expose()).unwrap(), shown);
            assert!(!format!("{shown:?}").contains("resume"));
        }
        let long = format!("p {}", "s".repeat(MAX_SECRET + 1));
        for wrong in ["", " ", "p ", " s", "p s s", "p\ts", "ä s", &long] {
            assert!(Shown::from_text(wrong).is_err(), "{wrong:?}");
        }
    }
}
