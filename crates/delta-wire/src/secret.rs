//! Credentials and secrets in memory: they have no `Display`, and their `Debug` shows nothing.

use std::fmt;

use zeroize::Zeroizing;

/// Text that must not be shown. It is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(Zeroizing::new(text.into()))
    }

    /// The text itself, for a header and for nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_show() {
        let text = format!("{:?}", Some(Secret::new("canary")));
        assert_eq!(text, "Some(Secret(…))");
    }
}
