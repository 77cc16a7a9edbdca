//! The mark between two pages of runs: opaque outside, the last run shown inside.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::invalid::Invalid;
use crate::time::Millis;

/// The last run of a page. The next page begins just after it, newest first; runs that are created
/// meanwhile do not shift anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub created_at: Millis,
    pub run: [u8; 16],
}

impl Cursor {
    pub fn encode(self) -> String {
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&self.created_at.0.to_be_bytes());
        bytes.extend_from_slice(&self.run);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    pub fn decode(text: &str) -> Result<Cursor, Invalid> {
        let wrong = || Invalid::field("cursor", "is not one that a page of this list gave");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
        let bytes: [u8; 24] = bytes.try_into().map_err(|_| wrong())?;
        let (created_at, run) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
        let run = run.try_into().map_err(|_| wrong())?;
        Ok(Cursor {
            created_at: Millis(i64::from_be_bytes(*created_at)),
            run,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_trip() {
        let cursor = Cursor {
            created_at: Millis(1_767_513_600_123),
            run: [9; 16],
        };
        assert_eq!(Cursor::decode(&cursor.encode()), Ok(cursor));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "x", "!!!", "AAAA", &"A".repeat(200)] {
            assert_eq!(Cursor::decode(text).unwrap_err().field, "cursor", "{text}");
        }
    }
}
