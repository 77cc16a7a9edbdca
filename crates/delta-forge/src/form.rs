//! A body as a form: GitHub sends one unless its settings say JSON. The payload is one of its
//! fields; the signature is over the form as it came.

use std::borrow::Cow;

use reqwest::header::{CONTENT_TYPE, HeaderMap};

use crate::BadDelivery;

const FORM: &str = "application/x-www-form-urlencoded";

/// The JSON of a delivery: the body, or the field of the form that it is.
pub(crate) fn json<'b>(headers: &HeaderMap, body: &'b [u8]) -> Result<Cow<'b, [u8]>, BadDelivery> {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|header| header.to_str().ok())
        .and_then(|it| it.split(';').next())
        .unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case(FORM) {
        return Ok(Cow::Borrowed(body));
    }
    let fields = body.split(|byte| *byte == b'&');
    let mut payload = fields.filter_map(|field| field.strip_prefix(b"payload="));
    let value = payload.next().and_then(decoded);
    value.map(Cow::Owned).ok_or_else(|| {
        let why = "it is a form without a payload; set the content type application/json";
        BadDelivery::Body(why.to_owned())
    })
}

/// None where a `%` is followed by something else than two digits.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?,
            other => *other,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_a_form_is_read_as_it_was() {
        let read = |text: &str| {
            decoded(text.as_bytes()).map(|decoded| String::from_utf8(decoded).unwrap())
        };
        assert_eq!(read("a+b%2Bc%3d%26").as_deref(), Some("a b+c=&"));
        assert_eq!(read("%C3%A4").as_deref(), Some("ä"));
        for bad in ["%", "%4", "%zz", "%+1"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
