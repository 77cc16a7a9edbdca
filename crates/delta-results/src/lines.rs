//! JSON line by line: libtest's events, `go test -json`, and our own schema. Each line stands for
//! itself, so a report that breaks off in the middle loses its last line only. Lines that are no
//! JSON are other people's output, and skipped; one of ours with something wrong in it is not,
//! since it may be the one that failed.

use std::io::BufRead;

use serde::de::{DeserializeSeed, MapAccess};

use crate::bounded_json::{Held, One, Room, skip};
use crate::events::{Go, Libtest, Running};
use crate::input::Input;
use crate::json::{self, Own, own};
use crate::stream::Cases;
use crate::{Limits, Problem};

/// A line longer than this is cut, and is then no JSON any more: 4 MiB hold a test's whole output.
const LINE: usize = 4 << 20;

enum Line {
    Go(Go),
    Libtest(Libtest),
    Own(Box<Own>),
    /// One of ours, with something in it that cannot be.
    Wrong(String),
    /// It ends in the middle.
    Torn,
    Other,
}

/// What was read so far.
#[derive(Default)]
struct Reader {
    running: Running,
    /// A line was one of ours: a brace alone opens nothing any more.
    known: bool,
    /// A document came right before this.
    documents: bool,
    torn: bool,
    wrong: Option<Problem>,
}

pub fn read<R: BufRead>(input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
    let mut reader = Reader::default();
    let read = reader.read(input, cases);
    if matches!(read, Err(Problem::Io(_) | Problem::TooMany(_))) {
        return read;
    }
    let whole = reader.running.end(cases)?;
    read?;
    match reader.wrong {
        Some(problem) => Err(problem),
        None if reader.torn || !whole => Err(Problem::CutOff),
        None if reader.known || reader.documents => Ok(()),
        None => Err(malformed(0, "no line of it is a test event")),
    }
}

fn malformed(at: u64, why: impl Into<String>) -> Problem {
    let why = why.into();
    Problem::Malformed { at, why }
}

impl Reader {
    fn read<R: BufRead>(&mut self, input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
        let mut line = Vec::new();
        loop {
            let at = input.at();
            // Everything before a document was white space, so it is whole.
            if opens_document(input, self.known)? {
                json::document(input, cases)?;
                self.documents = true;
                continue;
            }
            if self.documents && !self.known && input.peek()?.is_some_and(|byte| byte != b'{') {
                return Err(malformed(at, "something else comes after the report"));
            }
            if !input.line(LINE, &mut line)? {
                return Ok(());
            }
            self.hear(parse(&line, cases.limits), at, cases)?;
        }
    }

    fn hear(&mut self, line: Line, at: u64, cases: &mut Cases) -> Result<(), Problem> {
        let heard = match line {
            Line::Go(event) => self.running.go(event, cases),
            Line::Libtest(event) => self.running.libtest(event, cases),
            Line::Own(test) => own(*test, cases),
            Line::Wrong(why) => Err(malformed(at, why)),
            Line::Torn => {
                self.torn = true;
                return Ok(());
            }
            Line::Other => return Ok(()),
        };
        self.known = true;
        match heard {
            // The lines after it stand for themselves.
            Err(Problem::Malformed { why, .. }) => {
                self.wrong.get_or_insert(malformed(at, why));
                Ok(())
            }
            heard => heard,
        }
    }
}

/// Every kind of line has fields that the others lack.
#[derive(Default)]
struct Keys {
    action: bool,
    package: bool,
    kind: bool,
    event: bool,
    name: bool,
    status: bool,
}

impl Keys {
    fn are_ours(&self) -> bool {
        (self.action && self.package) || (self.name && self.status)
    }
}

impl Held for Keys {
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
        _room: &Room,
    ) -> Result<(), A::Error> {
        match name {
            "Action" => self.action = true,
            "Package" | "ImportPath" => self.package = true,
            "type" => self.kind = true,
            "event" => self.event = true,
            "name" => self.name = true,
            "status" => self.status = true,
            _ => {}
        }
        skip(map)
    }
}

fn parse(line: &[u8], limits: &Limits) -> Line {
    let room = Room::new(limits);
    let mut object = serde_json::Deserializer::from_slice(line);
    let keys: Keys = match One::new(&room).deserialize(&mut object) {
        Ok(keys) => keys,
        Err(error) if error.is_eof() && line.trim_ascii().starts_with(b"{") => return Line::Torn,
        Err(_) => return Line::Other,
    };
    let wrong = |error: serde_json::Error| {
        if keys.are_ours() {
            Line::Wrong(error.to_string())
        } else {
            Line::Other
        }
    };
    if let Err(error) = object.end() {
        return wrong(error);
    }
    let mut why = None;
    if keys.action {
        match serde_json::from_slice(line) {
            Ok(event) => return Line::Go(event),
            Err(error) => why = Some(error),
        }
    }
    if keys.kind
        && keys.event
        && let Ok(event) = serde_json::from_slice(line)
    {
        return Line::Libtest(event);
    }
    if keys.name && keys.status {
        let mut object = serde_json::Deserializer::from_slice(line);
        match One::new(&room).deserialize(&mut object) {
            Ok(test) => return Line::Own(Box::new(test)),
            Err(error) => why = Some(error),
        }
    }
    why.map_or(Line::Other, wrong)
}

/// Bytes that decide whether it is one document: a brace and the name of its first field.
const DECIDES: usize = 4096;

/// Whether what comes is a document: an object that has its tests first, or, before any line was
/// known, one over several lines.
fn opens_document<R: BufRead>(input: &mut Input<R>, known: bool) -> Result<bool, Problem> {
    if input.peek()? != Some(b'{') {
        return Ok(false);
    }
    let line = input.line_ahead(DECIDES)?;
    let ended = line.ends_with(b"\n");
    let begins = line[1..].trim_ascii();
    Ok((!known && ended && begins.is_empty()) || begins.starts_with(b"\"tests\""))
}
