//! Reading members of a JSON object one by one, so that what is wrong with one can be said by name.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

/// An object whose members are not read yet. Of two members of one name the last counts.
pub(crate) type Members<'a> = HashMap<Cow<'a, str>, &'a RawValue>;

/// What is wrong, and with which member.
pub(crate) type Wrong = String;

pub(crate) fn object<'a>(raw: &'a RawValue, what: &str) -> Result<Members<'a>, Wrong> {
    serde_json::from_str(raw.get()).map_err(|_| format!("{what} must be an object"))
}

/// A member that is there and not null.
pub(crate) fn given<'a>(members: &Members<'a>, name: &str) -> Option<&'a RawValue> {
    let raw = members.get(name).copied();
    raw.filter(|raw| raw.get() != "null")
}

pub(crate) fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

/// A text that must be there and say something.
pub(crate) fn text(members: &Members<'_>, name: &str) -> Result<String, Wrong> {
    let raw = given(members, name).ok_or_else(|| format!("{name} is missing"))?;
    match read::<String>(raw) {
        Some(text) if !text.is_empty() => Ok(text),
        Some(_) => Err(format!("{name} is empty")),
        None => Err(format!("{name} must be a string")),
    }
}

/// A text that may be absent.
pub(crate) fn may_text(members: &Members<'_>, name: &str) -> Result<Option<String>, Wrong> {
    match given(members, name) {
        Some(raw) => match read(raw) {
            Some(text) => Ok(Some(text)),
            None => Err(format!("{name} must be a string")),
        },
        None => Ok(None),
    }
}

/// An instant with its offset (RQ-5): one without could be any of many.
pub(crate) fn may_instant(members: &Members<'_>, name: &str) -> Result<Option<Timestamp>, Wrong> {
    let Some(text) = may_text(members, name)? else {
        return Ok(None);
    };
    let read = text.parse::<Timestamp>();
    let words = "must be an RFC 3339 time with its offset, as in 2026-01-04T08:00:00Z";
    read.map(Some).map_err(|_| format!("{name} {words}"))
}
