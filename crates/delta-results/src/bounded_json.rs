//! JSON that has to be held for a moment, within bounds: whatever a report repeats is counted while
//! it is read, not when all of it is there. What nobody asked for is skipped without a copy.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::{Limits, Problem};

/// How much more may be held.
pub struct Room<'l> {
    limits: &'l Limits,
    left: Cell<u64>,
    over: Cell<bool>,
}

impl<'l> Room<'l> {
    pub fn new(limits: &'l Limits) -> Room<'l> {
        Room {
            limits,
            left: Cell::new(limits.cases),
            over: Cell::new(false),
        }
    }

    fn take<E: de::Error>(&self) -> Result<(), E> {
        let Some(left) = self.left.get().checked_sub(1) else {
            self.over.set(true);
            return Err(E::custom("more than may be held"));
        };
        self.left.set(left);
        Ok(())
    }

    /// What stopped the reading, if it was this.
    pub fn problem(&self) -> Option<Problem> {
        let over = self.over.get();
        over.then_some(Problem::TooMany(self.limits.cases))
    }
}

/// An object of which some fields are held.
pub trait Held: Default {
    /// Takes the value of a field, or skips it.
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        room: &Room,
    ) -> Result<(), A::Error>;
}

pub fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(drop)
}

/// A text; `null` is an empty one.
pub fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<String, A::Error> {
    Ok(map.next_value::<Option<String>>()?.unwrap_or_default())
}

/// Every element of a list is held. They are counted together with all others of this room.
pub fn list<'de, A: MapAccess<'de>, T: Held>(map: &mut A, room: &Room) -> Result<Vec<T>, A::Error> {
    let mut all = Vec::new();
    map.next_value_seed(Each {
        room,
        counted: true,
        put: |it| all.push(it),
        held: PhantomData,
    })?;
    // Lists of one element, in each other, would cost four elements each.
    all.shrink_to_fit();
    Ok(all)
}

/// Every element of a list is looked at, and held by nobody here.
pub fn each<'de, A: MapAccess<'de>, T: Held>(
    map: &mut A,
    room: &Room,
    put: impl FnMut(T),
) -> Result<(), A::Error> {
    map.next_value_seed(Each {
        room,
        counted: false,
        put,
        held: PhantomData,
    })
}

/// One object; `null` is one without fields.
pub struct One<'r, T> {
    room: &'r Room<'r>,
    held: PhantomData<T>,
}

impl<'r, T> One<'r, T> {
    pub fn new(room: &'r Room<'r>) -> One<'r, T> {
        One {
            room,
            held: PhantomData,
        }
    }
}

impl<'de, T: Held> DeserializeSeed<'de> for One<'_, T> {
    type Value = T;
    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Held> Visitor<'de> for One<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut held = T::default();
        while let Some(name) = map.next_key::<String>()? {
            held.field(&name, &mut map, self.room)?;
        }
        Ok(held)
    }
}

struct Each<'r, T, F> {
    room: &'r Room<'r>,
    counted: bool,
    put: F,
    held: PhantomData<T>,
}

impl<'de, T: Held, F: FnMut(T)> DeserializeSeed<'de> for Each<'_, T, F> {
    type Value = ();
    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Held, F: FnMut(T)> Visitor<'de> for Each<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while let Some(element) = seq.next_element_seed(One::new(self.room))? {
            if self.counted {
                self.room.take()?;
            }
            (self.put)(element);
        }
        Ok(())
    }
}

/// Texts of a list as one, with something between them; `null` is none.
pub struct Joined(pub &'static str);

impl<'de> DeserializeSeed<'de> for Joined {
    type Value = String;
    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Joined {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of texts")
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok(String::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<String, A::Error> {
        let mut all: Option<String> = None;
        while let Some(text) = seq.next_element::<String>()? {
            match &mut all {
                None => all = Some(text),
                Some(all) => {
                    all.push_str(self.0);
                    all.push_str(&text);
                }
            }
        }
        Ok(all.unwrap_or_default())
    }
}

/// Names and texts, no more than are kept; `null` is none.
pub struct Metadata<'r>(pub &'r Room<'r>);

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = BTreeMap<String, String>;
    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, String>()? {
            if kept.len() < self.0.limits.metadata || kept.contains_key(&name) {
                kept.insert(name, value);
            }
        }
        Ok(kept)
    }
}
