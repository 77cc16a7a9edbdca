//! Secrets of a lease. Whoever holds the token may speak for the lease, so it has no `Display`
//! and its `Debug` shows nothing (RP-53, RP-54, A24).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;

use crate::fields::Node;
use crate::invalid::Invalid;

const PREFIX: &str = "lease_";
/// Run, job, attempt, epoch, and 256 random bits.
const TOKEN_BYTES: usize = 16 + 4 + 4 + 8 + 32;
/// Characters of a token: ours have 92; another server's may be longer, a page of text is not one.
pub const MAX_TOKEN: usize = 256;

/// A `lease_id`: the fencing token of one lease.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct LeaseToken(String);

/// Which lease a token claims to be of. A claim only: the stored hash proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Locator {
    pub run: [u8; 16],
    pub job: u32,
    pub attempt: u32,
    pub epoch: u64,
}

impl LeaseToken {
    pub fn mint(run: [u8; 16], job: u32, attempt: u32, epoch: u64, random: [u8; 32]) -> Self {
        let mut bytes = Vec::with_capacity(TOKEN_BYTES);
        bytes.extend_from_slice(&run);
        bytes.extend_from_slice(&job.to_be_bytes());
        bytes.extend_from_slice(&attempt.to_be_bytes());
        bytes.extend_from_slice(&epoch.to_be_bytes());
        bytes.extend_from_slice(&random);
        LeaseToken(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Takes a token from a header or a file. Any short printable text is one; whether a lease
    /// belongs to it is another question.
    pub fn from_text(text: &str) -> Result<Self, Invalid> {
        if text.is_empty() || text.len() > MAX_TOKEN {
            return Err(Invalid::here(format!(
                "must have 1 to {MAX_TOKEN} characters"
            )));
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(Invalid::here("must be printable, without spaces"));
        }
        Ok(LeaseToken(text.to_owned()))
    }

    /// The secret itself, for a body, the `Delta-Lease` header or a hash. For nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Where to look for the lease; nothing when the token is not one of ours, which makes it an
    /// unknown lease.
    pub fn locator(&self) -> Option<Locator> {
        let text = self.0.strip_prefix(PREFIX)?;
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let bytes: &[u8; TOKEN_BYTES] = bytes.as_slice().try_into().ok()?;
        let (run, rest) = bytes.split_first_chunk::<16>()?;
        let (job, rest) = rest.split_first_chunk::<4>()?;
        let (attempt, rest) = rest.split_first_chunk::<4>()?;
        let (epoch, _) = rest.split_first_chunk::<8>()?;
        Some(Locator {
            run: *run,
            job: u32::from_be_bytes(*job),
            attempt: u32::from_be_bytes(*attempt),
            epoch: u64::from_be_bytes(*epoch),
        })
    }

    pub(super) fn read(node: Node<'_>) -> Result<Self, Invalid> {
        LeaseToken::from_text(&node.string()?)
    }
}

impl std::fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("lease_…")
    }
}

/// A `cancel_token`: what a cancel on a topic of its own will have to show. No such topic exists
/// yet and no token is ever issued; a cancel on the session or in a heartbeat needs none (A61).
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct CancelToken(String);

impl CancelToken {
    pub fn from_text(text: &str) -> Result<Self, Invalid> {
        LeaseToken::from_text(text).map(|token| CancelToken(token.0))
    }

    /// The secret itself, for a body or a comparison. For nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub(super) fn read(node: Node<'_>) -> Result<Self, Invalid> {
        CancelToken::from_text(&node.string()?)
    }
}

impl std::fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cancel_…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> LeaseToken {
        LeaseToken::mint([7; 16], 3, 2, (5 << 32) + 9, [0xab; 32])
    }

    #[test]
    fn a_token_says_where_its_lease_is() {
        let locator = token().locator().unwrap();
        assert_eq!(locator.run, [7; 16]);
        assert_eq!(
            (locator.job, locator.attempt, locator.epoch),
            (3, 2, (5 << 32) + 9)
        );
        assert_eq!(token().expose().len(), 92);
    }

    #[test]
    fn any_other_text_is_just_an_unknown_lease() {
        let ours = token();
        let ours = ours.expose();
        let longer = format!("{ours}A");
        let padded = format!("{ours}==");
        for text in [
            "lease_abc",
            "lease_",
            "x",
            &ours[..91],
            &ours[1..],
            &longer,
            &padded,
        ] {
            assert_eq!(
                LeaseToken::from_text(text).unwrap().locator(),
                None,
                "{text}"
            );
        }
        assert!(LeaseToken::from_text("").is_err());
        assert!(LeaseToken::from_text("lease abc").is_err());
        assert!(LeaseToken::from_text(&"x".repeat(257)).is_err());
    }

    // RP-53, RP-54, A24
    #[test]
    fn debug_output_shows_no_secret() {
        assert_eq!(format!("{:?}", token()), "lease_…");
        assert_eq!(
            format!("{:?}", CancelToken::from_text("s3cret").unwrap()),
            "cancel_…"
        );
    }
}
