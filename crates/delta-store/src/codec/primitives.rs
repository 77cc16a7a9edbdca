//! The smallest parts: texts, moments, digests in hexadecimal, and enums by their names.

use std::borrow::Cow;

use delta_core::attempt::AttemptEvent;
use delta_core::lease::{LeaseEvent, Revocation};
use delta_core::run::RunEvent;
use delta_core::{Cause, Digest, JobId, Millis, Resolution, RunId, RunState, Span, Text};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Makes `serialize` and `deserialize` for a type, and `opt` for an option of it.
macro_rules! leaf {
    ($module:ident, $type:ty, $write:expr, $read:expr) => {
        pub mod $module {
            use super::*;

            pub fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$type, S) -> Result<S::Ok, S::Error> = $write;
                write(value, to)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let read: fn(D) -> Result<$type, D::Error> = $read;
                read(from)
            }

            #[allow(dead_code, reason = "not every leaf is ever optional")]
            pub mod opt {
                use super::*;

                #[derive(Serialize)]
                struct Shown<'a>(#[serde(serialize_with = "super::serialize")] &'a $type);

                #[derive(Deserialize)]
                struct Read(#[serde(deserialize_with = "super::deserialize")] $type);

                pub fn serialize<S: Serializer>(
                    value: &Option<$type>,
                    to: S,
                ) -> Result<S::Ok, S::Error> {
                    value.as_ref().map(Shown).serialize(to)
                }

                pub fn deserialize<'de, D: Deserializer<'de>>(
                    from: D,
                ) -> Result<Option<$type>, D::Error> {
                    Ok(Option::<Read>::deserialize(from)?.map(|Read(value)| value))
                }
            }
        }
    };
}

/// A leaf for an enum with `name` and `from_name`.
macro_rules! named {
    ($module:ident, $type:ty) => {
        leaf!(
            $module,
            $type,
            |value, to| to.serialize_str(value.name()),
            |from| {
                let name = Cow::<str>::deserialize(from)?;
                <$type>::from_name(&name)
                    .ok_or_else(|| D::Error::custom(format!("unknown name `{name}`")))
            }
        );
    };
}

leaf!(text, Text, |value, to| to.serialize_str(value), |from| {
    Ok(Cow::<str>::deserialize(from)?.into())
});
leaf!(
    millis,
    Millis,
    |value, to| to.serialize_i64(value.0),
    |from| i64::deserialize(from).map(Millis)
);
leaf!(span, Span, |value, to| to.serialize_i64(value.0), |from| {
    i64::deserialize(from).map(Span)
});
leaf!(
    digest,
    Digest,
    |value, to| to.serialize_str(hex(value, &mut [0; 64])),
    |from| {
        let text = Cow::<str>::deserialize(from)?;
        unhex(&text).ok_or_else(|| D::Error::custom("not a SHA-256 digest in hexadecimal"))
    }
);
leaf!(run_id, RunId, |value, to| to.collect_str(value), |from| {
    let text = Cow::<str>::deserialize(from)?;
    text.parse().map_err(D::Error::custom)
});
leaf!(job_id, JobId, |value, to| to.collect_str(value), |from| {
    let text = Cow::<str>::deserialize(from)?;
    text.parse().map_err(D::Error::custom)
});
named!(cause, Cause);
named!(run_state, RunState);
named!(run_event, RunEvent);
named!(attempt_event, AttemptEvent);
named!(lease_event, LeaseEvent);
named!(revocation, Revocation);
named!(resolution, Resolution);

fn hex<'b>(digest: &Digest, buffer: &'b mut [u8; 64]) -> &'b str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in buffer.chunks_exact_mut(2).zip(digest) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    std::str::from_utf8(buffer).expect("hexadecimal digits are text")
}

fn unhex(text: &str) -> Option<Digest> {
    let bytes = text.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(bytes.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(digest)
}

/// For fields that are left out when they are zero or false.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
