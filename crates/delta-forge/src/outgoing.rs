//! Outgoing webhooks: the end of a run, told to whoever wants to know, signed so that it can be
//! believed.
//!
//! `Delta-Signature: t=SECONDS,v1=HEX`, where HEX is HMAC-SHA256 over `SECONDS.BODY`. A receiver
//! compares the moment with its own clock, and `Delta-Delivery` with those it has seen: a delivery
//! that is sent again keeps its number.

use crate::signature::Secret;

pub const SIGNATURE: &str = "delta-signature";
const DELIVERY: &str = "delta-delivery";
const EVENT: &str = "delta-event";

/// One delivery.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'b> {
    /// Names the delivery: equal each time it is tried.
    pub id: &'b str,
    pub event: &'b str,
    /// Seconds since 1970.
    pub timestamp: i64,
    pub body: &'b [u8],
}

impl Outgoing<'_> {
    pub(crate) fn headers(&self, secret: &Secret) -> [(&'static str, String); 4] {
        [
            ("content-type", "application/json".to_owned()),
            (DELIVERY, self.id.to_owned()),
            (EVENT, self.event.to_owned()),
            (SIGNATURE, sign(secret, self.timestamp, self.body)),
        ]
    }
}

/// The value of the signature's header, for whoever checks one.
pub fn sign(secret: &Secret, timestamp: i64, body: &[u8]) -> String {
    let moment = timestamp.to_string();
    let hex = secret.sign(&[moment.as_bytes(), b".", body]);
    format!("t={moment},v1={hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_moment_is_part_of_what_is_signed() {
        let secret = Secret::new("0123456789abcdef");
        let signed = sign(&secret, 1_700_000_000, b"{}");
        let hex = signed.strip_prefix("t=1700000000,v1=").unwrap();
        assert_eq!(hex, secret.sign(&[b"1700000000.{}"]));
        assert_ne!(signed, sign(&secret, 1_700_000_001, b"{}"));
    }
}
