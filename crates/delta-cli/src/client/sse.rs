//! Server-sent events: a stream of small texts, each with an id, read as they come.

use reqwest::Response;

/// Bytes of one event at most: a fact list is bounded on the server, this keeps a foreign one from
/// growing our memory.
const MAX_EVENT_BYTES: usize = 4 * 1024 * 1024;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    pub name: Option<String>,
    pub data: String,
}

/// Reads events off a response.
pub struct Events {
    response: Response,
    parser: Parser,
}

impl Events {
    pub fn new(response: Response) -> Events {
        Events {
            response,
            parser: Parser::default(),
        }
    }

    /// The next event; `None` when the server ended the stream or it grew beyond its bound.
    pub async fn next(&mut self) -> Result<Option<Event>, reqwest::Error> {
        loop {
            if let Some(event) = self.parser.take() {
                return Ok(Some(event));
            }
            match self.response.chunk().await? {
                Some(chunk) if self.parser.push(&chunk) => {}
                _ => return Ok(None),
            }
        }
    }
}

#[derive(Default)]
struct Parser {
    bytes: Vec<u8>,
    /// The last byte was a carriage return: a line feed behind it belongs to the same end of line.
    returned: bool,
}

impl Parser {
    /// False when there is too much without an end.
    fn push(&mut self, chunk: &[u8]) -> bool {
        // A line ends with a line feed, a carriage return, or both: here all are line feeds.
        for byte in chunk {
            let after_return = std::mem::replace(&mut self.returned, *byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\r' => self.bytes.push(b'\n'),
                _ => self.bytes.push(*byte),
            }
        }
        self.bytes.len() <= MAX_EVENT_BYTES
    }

    fn take(&mut self) -> Option<Event> {
        loop {
            let end = self.bytes.windows(2).position(|pair| pair == b"\n\n")?;
            let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
            let event = parse(&String::from_utf8_lossy(&block));
            // A comment, sent to keep the connection open, is a block without data.
            if event.data.is_empty() && event.name.is_none() {
                continue;
            }
            return Some(event);
        }
    }
}

fn parse(block: &str) -> Event {
    let mut event = Event::default();
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => event.id = Some(value.to_owned()),
            "event" => event.name = Some(value.to_owned()),
            "data" => {
                if !event.data.is_empty() {
                    event.data.push('\n');
                }
                event.data.push_str(value);
            }
            _ => {}
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_across_pieces_and_comments_are_skipped() {
        let mut parser = Parser::default();
        assert!(parser.push(b": keep alive\r\n\r\nid: 7\ndata: {\"a\""));
        assert_eq!(parser.take(), None);
        assert!(parser.push(b":1}\n\nid: 8\nevent: end\ndata:\n\n"));
        let first = parser.take().unwrap();
        assert_eq!(
            (first.id.as_deref(), first.data.as_str()),
            (Some("7"), "{\"a\":1}")
        );
        assert_eq!(parser.take().unwrap().name.as_deref(), Some("end"));
        assert_eq!(parser.take(), None);
    }

    #[test]
    fn a_line_may_end_in_three_ways() {
        for end in ["\n", "\r", "\r\n"] {
            let text = ["id: 7", "data: a", "data: b", "", ""].join(end);
            let mut parser = Parser::default();
            // A piece may end between the two bytes of one end of line.
            assert!(text.bytes().all(|byte| parser.push(&[byte])));
            let event = parser.take().unwrap();
            assert_eq!(event.data, "a\nb", "{end:?}");
            assert_eq!(parser.take(), None, "{end:?}");
        }
    }

    #[test]
    fn a_stream_without_end_stays_bounded() {
        let mut parser = Parser::default();
        assert!(!parser.push(&vec![b'x'; MAX_EVENT_BYTES + 1]));
    }
}
