//! JSON reports. Large documents are walked with a cursor: only the elements of the lists that
//! matter are held, one at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::bounded_json::{Held, Metadata, One, Room, skip};
use crate::input::Input;
use crate::stream::Cases;
use crate::{Case, Problem, Status, lines};

/// The numbers at the top of a document, by name.
pub type Numbers = BTreeMap<String, u64>;

/// Numbers that are kept: Jest has a dozen of them.
const NUMBERS: usize = 64;

/// A list at the top of a document, and what becomes of its elements.
pub struct Listed<T> {
    pub field: &'static str,
    pub put: fn(T, &mut Cases) -> Result<(), Problem>,
}

/// Format `json`: lines of events, or one document of our own schema.
pub fn read<R: BufRead>(input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
    match input.peek()? {
        None => Err(Problem::CutOff),
        Some(b'[') => {
            walk(input, cases, Walk::Elements(own), true)?;
            Ok(())
        }
        Some(_) => lines::read(input, cases),
    }
}

/// A test in our own schema (docs/results.md).
#[derive(Default)]
pub struct Own {
    name: Option<String>,
    suite: Option<String>,
    status: Option<String>,
    duration_ms: Option<f64>,
    message: Option<String>,
    trace: Option<String>,
    metadata: BTreeMap<String, String>,
}

impl Held for Own {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "name" => self.name = map.next_value()?,
            "suite" => self.suite = map.next_value()?,
            "status" => self.status = map.next_value()?,
            "duration_ms" => self.duration_ms = map.next_value()?,
            "message" => self.message = map.next_value()?,
            "trace" => self.trace = map.next_value()?,
            "metadata" => self.metadata = map.next_value_seed(Metadata(room))?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

pub fn own(test: Own, cases: &mut Cases) -> Result<(), Problem> {
    let (Some(name), Some(status)) = (test.name, test.status) else {
        let why = "a test has no name or no status".to_owned();
        return Err(Problem::Malformed { at: 0, why });
    };
    let status = Status::from_name(&status).unwrap_or(Status::Error);
    let mut case = Case::new(test.suite.unwrap_or_default(), name, status);
    case.duration_ms = test.duration_ms.and_then(crate::junit::millis);
    case.metadata = test.metadata;
    case.explain(test.message, test.trace);
    cases.put(case)
}

/// Walks a document of our own schema that is one object: `{"tests": […]}`. More may follow it.
pub fn document<R: BufRead>(input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
    let lists = &[Listed {
        field: "tests",
        put: own,
    }];
    walk(input, cases, Walk::Fields(lists), false).map(drop)
}

/// Walks an object that is all there is; returns the numbers in it.
pub fn stream<R: BufRead, T: Held>(
    input: &mut Input<R>,
    cases: &mut Cases,
    lists: &[Listed<T>],
) -> Result<Numbers, Problem> {
    if input.peek()?.is_none() {
        return Err(Problem::CutOff);
    }
    walk(input, cases, Walk::Fields(lists), true)
}

enum Walk<'l, T> {
    Fields(&'l [Listed<T>]),
    Elements(fn(T, &mut Cases) -> Result<(), Problem>),
}

fn walk<R: BufRead, T: Held>(
    input: &mut Input<R>,
    cases: &mut Cases,
    walk: Walk<'_, T>,
    alone: bool,
) -> Result<Numbers, Problem> {
    // Our own refusals travel past serde, which has errors of its own only.
    let refused = RefCell::new(None);
    let mut document = serde_json::Deserializer::from_reader(&mut *input);
    let top = Top {
        walk,
        refused: &refused,
        cases,
    };
    let read = top.deserialize(&mut document).and_then(|numbers| {
        // What comes after it would be read by nobody.
        if alone {
            document.end()?;
        }
        Ok(numbers)
    });
    let at = input.at();
    match refused.take() {
        Some(Problem::Malformed { why, .. }) => Err(Problem::Malformed { at, why }),
        Some(problem) => Err(problem),
        None => read.map_err(|error| explain(error, at)),
    }
}

pub fn explain(error: serde_json::Error, at: u64) -> Problem {
    use serde_json::error::Category;
    match error.classify() {
        Category::Eof => Problem::CutOff,
        Category::Io => Problem::Io(error.into()),
        Category::Syntax | Category::Data => Problem::Malformed {
            at,
            why: error.to_string(),
        },
    }
}

struct Top<'a, 'c, 's, T> {
    walk: Walk<'a, T>,
    refused: &'a RefCell<Option<Problem>>,
    cases: &'c mut Cases<'s>,
}

impl<'de, T: Held> DeserializeSeed<'de> for Top<'_, '_, '_, T> {
    type Value = Numbers;
    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<Numbers, D::Error> {
        match self.walk {
            Walk::Fields(_) => from.deserialize_map(self),
            Walk::Elements(_) => from.deserialize_seq(self),
        }
    }
}

impl<'de, T: Held> Visitor<'de> for Top<'_, '_, '_, T> {
    type Value = Numbers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a test report")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Numbers, A::Error> {
        let Walk::Fields(lists) = self.walk else {
            return Err(de::Error::custom("a list was expected"));
        };
        let mut numbers = Numbers::new();
        while let Some(name) = map.next_key::<String>()? {
            if let Some(list) = lists.iter().find(|list| list.field == name) {
                map.next_value_seed(Elements {
                    put: list.put,
                    refused: self.refused,
                    cases: &mut *self.cases,
                    element: PhantomData,
                })?;
            } else if let Some(number) = map.next_value::<Value>()?.0
                && numbers.len() < NUMBERS
            {
                numbers.insert(name, number);
            }
        }
        Ok(numbers)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Numbers, A::Error> {
        let Walk::Elements(put) = self.walk else {
            return Err(de::Error::custom("an object was expected"));
        };
        let elements = Elements {
            put,
            refused: self.refused,
            cases: self.cases,
            element: PhantomData,
        };
        elements.visit_seq(seq)?;
        Ok(Numbers::new())
    }
}

struct Elements<'a, 'c, 's, T> {
    put: fn(T, &mut Cases) -> Result<(), Problem>,
    refused: &'a RefCell<Option<Problem>>,
    cases: &'c mut Cases<'s>,
    element: PhantomData<T>,
}

impl<'de, T: Held> DeserializeSeed<'de> for Elements<'_, '_, '_, T> {
    type Value = ();
    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, T: Held> Visitor<'de> for Elements<'_, '_, '_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        loop {
            let room = Room::new(self.cases.limits);
            let element = seq.next_element_seed(One::new(&room)).inspect_err(|_| {
                *self.refused.borrow_mut() = room.problem();
            })?;
            let Some(element) = element else {
                return Ok(());
            };
            if let Err(problem) = (self.put)(element, self.cases) {
                *self.refused.borrow_mut() = Some(problem);
                return Err(de::Error::custom("refused"));
            }
        }
    }
}

/// Any value: kept when it is a whole number, skipped without a copy otherwise.
struct Value(Option<u64>);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: de::Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(Value(Some(number)))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
                Ok(Value(None))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
                Ok(Value(None))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
                Ok(Value(None))
            }
            fn visit_str<E>(self, _: &str) -> Result<Value, E> {
                Ok(Value(None))
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Value(None))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Value(None))
            }
        }
        from.deserialize_any(Any)
    }
}
