//! Reading JSON field by field, so that every refusal names the field and says what was expected.
//!
//! A [`Node`] is one value still in its text; a [`Fields`] is an object whose fields are asked for
//! by name. What nobody asked for is unknown: runners' messages count it, the people's API refuses
//! it with the nearest known name (A71). A field given twice is refused: which one counts would be
//! a guess (RP-1).

use std::cell::Cell;
use std::collections::HashSet;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::invalid::{Invalid, Problems};
use crate::nearest::nearest;
use crate::seconds::Seconds;

/// Fields of one object. The largest honest one is an environment of 500 entries.
pub const MAX_FIELDS: usize = 1024;

/// One JSON value, not yet read.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    raw: &'a RawValue,
    unknown: &'a Cell<u32>,
}

impl<'a> Node<'a> {
    pub fn new(raw: &'a RawValue, unknown: &'a Cell<u32>) -> Self {
        Node { raw, unknown }
    }

    /// The value's text, byte for byte.
    pub fn raw(self) -> &'a RawValue {
        self.raw
    }

    pub fn is_null(self) -> bool {
        self.raw.get() == "null"
    }

    pub fn object(self) -> Result<Fields<'a>, Invalid> {
        if !self.raw.get().starts_with('{') {
            return Err(self.wrong("an object"));
        }
        let Entries(list) = serde_json::from_str(self.raw.get()).map_err(not_json)?;
        Ok(Fields {
            entries: list,
            asked: Vec::new(),
            unknown: self.unknown,
        })
    }

    /// The items of a list of at most `most` items.
    pub fn list(self, most: usize) -> Result<Vec<Node<'a>>, Invalid> {
        if !self.raw.get().starts_with('[') {
            return Err(self.wrong("a list"));
        }
        let items: Vec<&'a RawValue> = serde_json::from_str(self.raw.get()).map_err(not_json)?;
        if items.len() > most {
            return Err(Invalid::here(format!(
                "has {} items, at most {most}",
                items.len()
            )));
        }
        Ok(items
            .into_iter()
            .map(|raw| Node {
                raw,
                unknown: self.unknown,
            })
            .collect())
    }

    /// A list, each item read by `read`; a problem names the item.
    pub fn each<T>(
        self,
        most: usize,
        read: impl Fn(Node<'a>) -> Result<T, Invalid>,
    ) -> Result<Vec<T>, Invalid> {
        let items = self.list(most)?.into_iter().enumerate();
        items
            .map(|(index, item)| read(item).map_err(|it| it.within(&format!("[{index}]"))))
            .collect()
    }

    /// A list of which every item is read, and everything listed that is wrong with any of them.
    pub fn each_all<T>(
        self,
        most: usize,
        read: impl Fn(Node<'a>) -> Result<T, Problems>,
    ) -> Result<Vec<T>, Problems> {
        let (mut all, mut problems) = (Vec::new(), Problems::new());
        for (index, item) in self.list(most)?.into_iter().enumerate() {
            let one = read(item).map_err(|found| found.within(&format!("[{index}]")));
            all.extend(problems.note_all(one));
        }
        if problems.is_empty() {
            Ok(all)
        } else {
            Err(problems)
        }
    }

    pub fn string(self) -> Result<String, Invalid> {
        if !self.raw.get().starts_with('"') {
            return Err(self.wrong("a string"));
        }
        serde_json::from_str(self.raw.get()).map_err(not_json)
    }

    /// A string of 1 to `most` characters.
    pub fn text(self, most: usize) -> Result<String, Invalid> {
        let text = self.string()?;
        if text.is_empty() {
            return Err(Invalid::here("is empty"));
        }
        let length = text.chars().count();
        if length > most {
            return Err(Invalid::here(format!(
                "has {length} characters, at most {most}"
            )));
        }
        Ok(text)
    }

    /// A string that only informs: what is beyond `most` bytes is cut off, at a character's edge.
    pub fn cut(self, most: usize) -> Result<String, Invalid> {
        let mut text = self.string()?;
        text.truncate(text.floor_char_boundary(most));
        Ok(text)
    }

    pub fn boolean(self) -> Result<bool, Invalid> {
        match self.raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.wrong("true or false")),
        }
    }

    pub fn number(self) -> Result<f64, Invalid> {
        if !self.is_number() {
            return Err(self.wrong("a number"));
        }
        serde_json::from_str(self.raw.get()).map_err(|_| Invalid::here("is too large a number"))
    }

    /// A whole number in a range; `5.0` is one, as it is to a schema.
    pub fn whole(self, least: i64, most: i64) -> Result<i64, Invalid> {
        if !self.is_number() {
            return Err(self.wrong("a whole number"));
        }
        let number: Option<i64> = serde_json::from_str(self.raw.get()).ok();
        let number = number.or_else(|| whole_of(serde_json::from_str(self.raw.get()).ok()?));
        number
            .filter(|it| (least..=most).contains(it))
            .ok_or_else(|| Invalid::here(format!("must be a whole number from {least} to {most}")))
    }

    /// A count: a whole number that is not negative.
    pub fn count(self) -> Result<u64, Invalid> {
        self.whole(0, i64::MAX).map(i64::unsigned_abs)
    }

    /// Seconds, fractional where needed, 0 allowed.
    pub fn seconds(self) -> Result<Seconds, Invalid> {
        Seconds::from_number(self.number()?).map_err(Invalid::here)
    }

    /// Seconds of a time that is running: never 0.
    pub fn positive_seconds(self) -> Result<Seconds, Invalid> {
        let seconds = self.seconds()?;
        if seconds.is_zero() {
            return Err(Invalid::here("must be more than 0 seconds"));
        }
        Ok(seconds)
    }

    /// 64 hexadecimal digits, lower case: a SHA-256.
    pub fn sha256(self) -> Result<String, Invalid> {
        let text = self.string()?;
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() == 64 && text.bytes().all(hex) {
            Ok(text)
        } else {
            Err(Invalid::here(
                "must be a SHA-256 in 64 lower-case hexadecimal digits",
            ))
        }
    }

    fn is_number(self) -> bool {
        self.raw
            .get()
            .starts_with(|c: char| c == '-' || c.is_ascii_digit())
    }

    fn wrong(self, expected: &str) -> Invalid {
        let found = match self.raw.get().as_bytes().first() {
            Some(b'{') => "an object",
            Some(b'[') => "a list",
            Some(b'"') => "a string",
            Some(b't' | b'f') => "true or false",
            Some(b'n') => "null",
            _ => "a number",
        };
        Invalid::here(format!("must be {expected}, not {found}"))
    }
}

/// An object's fields, asked for by name.
pub struct Fields<'a> {
    entries: Vec<(String, &'a RawValue)>,
    asked: Vec<&'static str>,
    unknown: &'a Cell<u32>,
}

impl<'a> Fields<'a> {
    /// A field that must be there and not null.
    pub fn must<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Node<'a>) -> Result<T, Invalid>,
    ) -> Result<T, Invalid> {
        self.may(name, read)?.ok_or_else(|| Invalid::missing(name))
    }

    /// A field that may be absent; null says the same as absent.
    pub fn may<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Node<'a>) -> Result<T, Invalid>,
    ) -> Result<Option<T>, Invalid> {
        match self.find(name) {
            Some(node) => read(node).map(Some).map_err(|problem| problem.within(name)),
            None => Ok(None),
        }
    }

    /// [`Fields::must`] with a reader that lists everything wrong with the value.
    pub fn must_all<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Node<'a>) -> Result<T, Problems>,
    ) -> Result<T, Problems> {
        let found = self.may_all(name, read)?;
        found.ok_or_else(|| Invalid::missing(name).into())
    }

    /// [`Fields::may`] with a reader that lists everything wrong with the value.
    pub fn may_all<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Node<'a>) -> Result<T, Problems>,
    ) -> Result<Option<T>, Problems> {
        match self.find(name) {
            Some(node) => read(node).map(Some).map_err(|found| found.within(name)),
            None => Ok(None),
        }
    }

    /// The field that is asked for, unless it is absent or null.
    fn find(&mut self, name: &'static str) -> Option<Node<'a>> {
        self.asked.push(name);
        let (_, raw) = self.entries.iter().find(|(key, _)| key == name)?;
        let node = Node {
            raw,
            unknown: self.unknown,
        };
        Some(node).filter(|node| !node.is_null())
    }

    /// Every field in the order it was written, for objects that are maps.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Node<'a>)> {
        let unknown = self.unknown;
        self.entries
            .iter()
            .map(move |(name, raw)| (name.as_str(), Node { raw, unknown }))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Ends a lenient reading: what was not asked for is counted.
    pub fn close(self) {
        let unasked = self.unasked().count();
        self.unknown
            .set(self.unknown.get().saturating_add(unasked as u32));
    }

    /// Ends a strict reading: what was not asked for is a problem each.
    pub fn refuse_unknown(self, problems: &mut Problems) {
        for name in self.unasked() {
            let message = match nearest(name, self.asked.iter().copied()) {
                Some(known) => format!("is not known; did you mean `{known}`?"),
                None => format!("is not known; known here: {}", self.asked.join(", ")),
            };
            problems.push(Invalid::field(shown(name), message));
        }
    }

    fn unasked(&self) -> impl Iterator<Item = &str> {
        let asked = &self.asked;
        let names = self.entries.iter().map(|(name, _)| name.as_str());
        names.filter(move |name| !asked.contains(name))
    }
}

/// Reads a whole text as one value and hands it to `read` with the counter of unknown fields.
pub fn read_text<T>(
    text: &[u8],
    read: impl FnOnce(Node<'_>) -> Result<T, Invalid>,
) -> Result<(T, u32), Invalid> {
    let text = std::str::from_utf8(text).map_err(|_| Invalid::here("is not UTF-8"))?;
    let raw: &RawValue = serde_json::from_str(text).map_err(not_json)?;
    let unknown = Cell::new(0);
    let value = read(Node::new(raw, &unknown))?;
    Ok((value, unknown.get()))
}

/// The whole number that was written with a fraction of nothing, or with an exponent.
fn whole_of(number: f64) -> Option<i64> {
    // The first that is no i64; every one below is exact.
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    let fits = number.fract() == 0.0 && (-BEYOND..BEYOND).contains(&number);
    fits.then_some(number as i64)
}

/// A name from outside as a path may show it: no control characters, and not a page of it.
fn shown(name: &str) -> String {
    name.chars()
        .take(64)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn not_json(error: serde_json::Error) -> Invalid {
    Invalid::here(format!("is not the JSON expected: {error}"))
}

/// An object's entries in order, each value left in its text.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor).map(Entries)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        use serde::de::Error;
        let mut list: Self::Value = Vec::new();
        let mut names = HashSet::new();
        while let Some((name, raw)) = map.next_entry::<String, &'de RawValue>()? {
            if list.len() == MAX_FIELDS {
                return Err(A::Error::custom(format!("more than {MAX_FIELDS} fields")));
            }
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!(
                    "`{}` is given twice",
                    shown(&name)
                )));
            }
            list.push((name, raw));
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(text: &str) -> Result<(String, u32), Invalid> {
        read_text(text.as_bytes(), |node| {
            let mut fields = node.object()?;
            let name = fields.must("name", |it| it.text(5))?;
            fields.close();
            Ok(name)
        })
    }

    #[test]
    fn a_field_is_read_and_strangers_are_counted() {
        assert_eq!(
            name_of(r#"{"name":"a","x":1,"y":[{"z":2}]}"#),
            Ok(("a".into(), 2))
        );
    }

    #[test]
    fn each_refusal_names_its_field() {
        let refused = |text| name_of(text).unwrap_err().to_string();
        assert_eq!(refused("{}"), "name: is missing");
        assert_eq!(refused(r#"{"name":null}"#), "name: is missing");
        assert_eq!(
            refused(r#"{"name":5}"#),
            "name: must be a string, not a number"
        );
        assert_eq!(refused(r#"{"name":""}"#), "name: is empty");
        assert_eq!(
            refused(r#"{"name":"abcdef"}"#),
            "name: has 6 characters, at most 5"
        );
        assert_eq!(refused("[]"), "body: must be an object, not a list");
        assert!(refused(r#"{"name":"a","name":"b"}"#).contains("`name` is given twice"));
        assert!(refused("{").starts_with("body: is not the JSON expected"));
    }

    #[test]
    fn a_whole_number_is_one_however_it_is_written() {
        let read = |text: &str| read_text(text.as_bytes(), |node| node.whole(-5, 5000));
        for (text, number) in [
            ("5", 5),
            ("5.0", 5),
            ("-5.0", -5),
            ("4e3", 4000),
            ("0.0", 0),
        ] {
            assert_eq!(read(text), Ok((number, 0)), "{text}");
        }
        for text in [
            "5.5",
            "5001.0",
            "1e300",
            "-1e300",
            "9223372036854775808",
            "\"5\"",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn text_that_only_informs_is_cut_at_a_characters_edge() {
        let cut = read_text("\"aé\"".as_bytes(), |node| node.cut(2)).unwrap();
        assert_eq!(cut.0, "a");
    }

    #[test]
    fn deep_nesting_in_a_stranger_is_harmless() {
        let deep = format!(
            r#"{{"name":"a","x":{}{}}}"#,
            "[".repeat(20_000),
            "]".repeat(20_000)
        );
        assert_eq!(name_of(&deep), Ok(("a".into(), 1)));
    }
}
