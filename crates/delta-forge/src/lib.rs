//! Forges: what comes in as a webhook, and what goes out as the status of a commit.
//!
//! Reading a delivery is a pure function of its bytes, its headers and a secret. Talking to a forge
//! is one client with a typed answer: done, again later, or refused. What differs between forges is
//! behind [`Dialect`]; another forge is another file there. This crate knows no run, no store and
//! no server, and keeps nothing.

mod client;
mod dialect;
mod event;
mod form;
mod hosts;
mod names;
mod outgoing;
mod payload;
mod signature;
mod site;
mod status;
mod verdict;

pub use client::{Client, NoClient};
pub use dialect::{Dialect, Kind};
pub use event::{Event, PullRequest, Push};
pub use hosts::Never;
pub use names::{BadName, Commit, Ref};
pub use outgoing::{Outgoing, SIGNATURE as OUTGOING_SIGNATURE, sign as sign_outgoing};
pub use signature::{MIN_SECRET_BYTES, Secret};
pub use site::{BadSite, Site, host_of};
pub use status::{MAX_DESCRIPTION, State, Status};
pub use verdict::Verdict;

/// Bytes of a webhook's body. A push of a thousand commits has two million; a larger one is refused
/// by its length, and the forge shows that beside the delivery.
pub const MAX_BODY: usize = 4 * 1024 * 1024;

/// Why a delivery is not believed or not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDelivery {
    /// One answer for a missing, a malformed and a wrong signature.
    #[error("the signature is missing or wrong")]
    Signature,
    #[error("the header {0} is missing or has characters that no such header has")]
    Header(&'static str),
    #[error("the body is not what this forge sends: {0}")]
    Body(String),
    #[error("the delivery is about `{found}`, and this address is for `{wanted}`")]
    OtherRepository { found: String, wanted: String },
}

/// A delivery whose signature is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The forge's own number of it.
    pub id: String,
    pub event: Event,
}

/// Reads a delivery: first its signature over the raw bytes, then everything else. `wanted` is the
/// repository that this address is for, as `owner/name`.
pub fn read(
    kind: Kind,
    headers: &reqwest::header::HeaderMap,
    body: &[u8],
    secret: &Secret,
    wanted: &str,
) -> Result<Delivery, BadDelivery> {
    let dialect = kind.dialect();
    if !dialect.is_signed(headers, body, secret) {
        return Err(BadDelivery::Signature);
    }
    let id = names::header(headers, dialect.delivery_header())?;
    let name = names::header(headers, dialect.event_header())?;
    let event = dialect.event(name, &form::json(headers, body)?, wanted)?;
    Ok(Delivery {
        id: id.to_owned(),
        event,
    })
}
