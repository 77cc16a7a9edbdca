//! Signatures over raw bytes: HMAC-SHA256, compared in constant time (T18, T32).

use aws_lc_rs::hmac;
use zeroize::Zeroizing;

/// A shorter secret could be guessed from one delivery.
pub const MIN_SECRET_BYTES: usize = 16;

/// What a forge and this server both know, or a token. Its `Debug` shows nothing.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(Zeroizing::new(text.into()))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes())
    }

    /// The signature of these bytes, in hexadecimal.
    pub fn sign(&self, parts: &[&[u8]]) -> String {
        let mut context = hmac::Context::with_key(&self.key());
        parts.iter().for_each(|part| context.update(part));
        let tag = context.sign();
        tag.as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Whether `hex` is the signature of these bytes. All of it is looked at, whatever it is.
    pub(crate) fn verifies(&self, bytes: &[u8], hex: &str) -> bool {
        match unhex(hex) {
            Some(tag) => hmac::verify(&self.key(), bytes, &tag).is_ok(),
            None => false,
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Whether a text has the shape of a signature.
pub(crate) fn may_be_signature(hex: &str) -> bool {
    unhex(hex).is_some()
}

fn unhex(hex: &str) -> Option<[u8; 32]> {
    let bytes = hex.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    let mut tag = [0; 32];
    for (byte, pair) in tag.iter_mut().zip(bytes.chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GitHub's own example, from its documentation.
    const BODY: &[u8] = b"Hello, World!";
    const HEX: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    #[test]
    fn the_documented_example_verifies() {
        let secret = Secret::new("It's a Secret to Everybody");
        assert_eq!(secret.sign(&[BODY]), HEX);
        assert_eq!(secret.sign(&[b"Hello, ", b"World!"]), HEX);
        assert!(secret.verifies(BODY, HEX));
    }

    #[test]
    fn anything_else_does_not() {
        // T18
        let secret = Secret::new("It's a Secret to Everybody");
        let other = Secret::new("another");
        assert!(!other.verifies(BODY, HEX));
        assert!(!secret.verifies(b"Hello, World?", HEX));
        for hex in [
            "",
            "757107",
            &HEX[..63],
            &format!("{HEX}0"),
            &"z".repeat(64),
        ] {
            assert!(!secret.verifies(BODY, hex), "{hex}");
        }
        for n in 0..64 {
            let mut changed = HEX.to_owned();
            let digit = if &HEX[n..=n] == "0" { "1" } else { "0" };
            changed.replace_range(n..=n, digit);
            assert!(!secret.verifies(BODY, &changed));
        }
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }
}
