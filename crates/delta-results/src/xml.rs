//! XML as three kinds of pieces. No document type, no entity beyond the five of XML and characters
//! by number, no namespace; bytes that are no text become replacement characters.

use std::io::BufRead;

use quick_xml::Reader;
use quick_xml::errors::Error;
use quick_xml::escape::{resolve_xml_entity, unescape};
use quick_xml::events::{BytesStart, Event};

use crate::Problem;
use crate::input::{Input, Text};

/// Attributes of one element: a tool writes a dozen. Each costs far more than its bytes.
const ATTRIBUTES: usize = 64;

pub enum Piece {
    Open(Element),
    Close,
    Text(String),
    End,
}

pub struct Element {
    /// Without a namespace's prefix.
    pub name: String,
    attributes: Vec<(String, String)>,
}

impl Element {
    pub fn take(&mut self, name: &str) -> Option<String> {
        let found = self.attributes.iter().position(|(key, _)| key == name)?;
        Some(self.attributes.swap_remove(found).1)
    }

    pub fn number(&mut self, name: &str) -> Option<u64> {
        self.take(name)?.trim().parse().ok()
    }
}

pub struct Pieces<'i, R> {
    reader: Reader<Text<'i, R>>,
    buffer: Vec<u8>,
    depth: usize,
    deepest: usize,
}

impl<'i, R: BufRead> Pieces<'i, R> {
    pub fn new(input: &'i mut Input<R>, deepest: usize) -> Pieces<'i, R> {
        let mut reader = Reader::from_reader(Text::new(input));
        let config = reader.config_mut();
        config.expand_empty_elements = true;
        // A lone ampersand is common in hand-made reports.
        config.allow_dangling_amp = true;
        Pieces {
            reader,
            buffer: Vec::new(),
            depth: 0,
            deepest,
        }
    }

    pub fn next(&mut self) -> Result<Piece, Problem> {
        loop {
            self.buffer.clear();
            // A buffer that one huge text made large is not kept for the rest.
            self.buffer.shrink_to(1 << 20);
            let piece = match self.reader.read_event_into(&mut self.buffer) {
                Ok(Event::Start(start)) => {
                    let at = self.reader.buffer_position();
                    Piece::Open(element(&start, at)?)
                }
                Ok(Event::End(_)) => Piece::Close,
                Ok(Event::Text(text)) => Piece::Text(text.to_string()),
                Ok(Event::CData(text)) => Piece::Text(text.to_string()),
                Ok(Event::GeneralRef(name)) => Piece::Text(reference(&name)),
                Ok(Event::DocType(_)) => return Err(Problem::Doctype),
                Ok(Event::Eof) if self.depth > 0 => return Err(Problem::CutOff),
                Ok(Event::Eof) => Piece::End,
                Ok(Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_)) => continue,
                Err(error) => return Err(self.explain(error)),
            };
            match piece {
                Piece::Open(_) if self.depth == self.deepest => {
                    return Err(Problem::TooDeep(self.deepest));
                }
                Piece::Open(_) => self.depth += 1,
                Piece::Close => self.depth -= 1,
                _ => {}
            }
            return Ok(piece);
        }
    }

    /// Reads on until the element that was opened last is closed, and what it says meanwhile; what
    /// is beyond `limit` bytes is dropped. Elements inside give their text too.
    pub fn text(&mut self, limit: usize) -> Result<String, Problem> {
        let (mut text, mut depth) = (String::new(), 0);
        loop {
            match self.next()? {
                Piece::Open(_) => depth += 1,
                Piece::Close if depth == 0 => return Ok(text),
                Piece::Close => depth -= 1,
                // One byte more than the bound, so that whoever cuts it says so.
                Piece::Text(part) if text.len() <= limit => text.push_str(&part),
                Piece::Text(_) => {}
                Piece::End => return Err(Problem::CutOff),
            }
        }
    }

    pub fn skip(&mut self) -> Result<(), Problem> {
        self.text(0).map(drop)
    }

    /// Sees that nothing comes after what was read: nobody would read it.
    pub fn end(&mut self) -> Result<(), Problem> {
        loop {
            match self.next()? {
                Piece::End => return Ok(()),
                Piece::Text(text) if text.trim().is_empty() => {}
                _ => {
                    let at = self.reader.buffer_position();
                    let why = "something else comes after the report".to_owned();
                    return Err(Problem::Malformed { at, why });
                }
            }
        }
    }

    fn explain(&mut self, error: Error) -> Problem {
        if let Error::Io(error) = error {
            return Problem::Io(std::io::Error::new(error.kind(), error.to_string()));
        }
        let at = self.reader.error_position();
        let ended = self.reader.get_mut().fill_buf();
        if ended.is_ok_and(<[u8]>::is_empty) {
            Problem::CutOff
        } else {
            Problem::Malformed {
                at,
                why: error.to_string(),
            }
        }
    }
}

fn element(start: &BytesStart, at: u64) -> Result<Element, Problem> {
    let mut attributes = start.attributes();
    attributes.with_checks(false);
    let mut kept = Vec::new();
    // A broken attribute costs itself.
    for attribute in attributes.flatten() {
        if kept.len() == ATTRIBUTES {
            let why = format!("an element has more than {ATTRIBUTES} attributes");
            return Err(Problem::Malformed { at, why });
        }
        let value = attribute.value;
        let value = unescape(&value).map_or_else(|_| value.to_string(), |text| text.into_owned());
        kept.push((attribute.key.local_name().as_ref().to_owned(), value));
    }
    Ok(Element {
        name: start.local_name().as_ref().to_owned(),
        attributes: kept,
    })
}

/// What `&name;` stands for; itself where nobody knows.
fn reference(name: &str) -> String {
    if let Some(known) = resolve_xml_entity(name) {
        return known.into();
    }
    let written = format!("&{name};");
    match unescape(&written) {
        Ok(text) => text.into_owned(),
        Err(_) => written,
    }
}
