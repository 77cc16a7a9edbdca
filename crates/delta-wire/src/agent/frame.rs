//! Frames: several messages in one unit of the stream.
//!
//! A frame is written as a protobuf message and read as a list of byte strings, which on the wire
//! is the same. So a message that cannot be read is left out, and the frame around it is not lost
//! (EP-37, EP-38).

use bytes::{Buf, Bytes};
use prost::Message;

use super::MAX_FRAME_MESSAGES;

/// A frame as it came: its messages unread.
#[derive(Clone, PartialEq, Message)]
pub struct RawFrame {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub messages: Vec<Bytes>,
}

/// What came in one unit of the stream.
#[derive(Debug)]
pub struct Received {
    pub messages: Vec<Bytes>,
    /// The frame itself was garbled, or had more messages than a frame has.
    pub garbled: bool,
}

/// Reads one unit of the stream; never fails, because a stream outlives nonsense.
pub fn read(bytes: impl Buf) -> Received {
    match RawFrame::decode(bytes) {
        Ok(frame) if frame.messages.len() <= MAX_FRAME_MESSAGES => Received {
            messages: frame.messages,
            garbled: false,
        },
        Ok(_) | Err(_) => Received {
            messages: Vec::new(),
            garbled: true,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::proto::agent_message::Message as Said;
    use crate::agent::proto::{AgentFrame, AgentMessage, DrainComplete};

    fn drained(id: &str) -> AgentMessage {
        let said = DrainComplete {
            drain_id: id.to_owned(),
        };
        AgentMessage {
            message: Some(Said::DrainComplete(said)),
        }
    }

    #[test]
    fn a_garbled_message_does_not_cost_its_neighbours() {
        // EP-38, A36
        let good = [drained("a").encode_to_vec(), drained("b").encode_to_vec()];
        let frame = RawFrame {
            messages: vec![
                good[0].clone().into(),
                Bytes::from_static(b"\xff\xff\xff"),
                good[1].clone().into(),
            ],
        };
        let received = read(&frame.encode_to_vec()[..]);
        assert!(!received.garbled);
        let read: Vec<bool> = received
            .messages
            .iter()
            .map(|bytes| AgentMessage::decode(bytes.clone()).is_ok())
            .collect();
        assert_eq!(read, [true, false, true]);
    }

    #[test]
    fn a_frame_is_the_same_read_whole_or_in_pieces() {
        let frame = AgentFrame {
            messages: vec![drained("a"), drained("b")],
        };
        let bytes = frame.encode_to_vec();
        let messages = |raw: Received| -> Vec<AgentMessage> {
            let messages = raw.messages.into_iter();
            messages
                .map(|bytes| AgentMessage::decode(bytes).unwrap())
                .collect()
        };
        assert_eq!(messages(read(&bytes[..])), frame.messages);
        // As a network hands it over: cut anywhere, in the middle of a length too.
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let pieces = first.chain(second);
            assert_eq!(messages(read(pieces)), frame.messages, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_frame_is_said_to_be_garbled() {
        assert!(read(&b"\xff\xff\xff"[..]).garbled);
        let many = RawFrame {
            messages: vec![Bytes::new(); MAX_FRAME_MESSAGES + 1],
        };
        assert!(read(&many.encode_to_vec()[..]).garbled);
    }

    #[test]
    fn an_unknown_message_is_empty() {
        // EP-37, EP-54
        let unknown = AgentMessage::decode(&b"\xa2\x06\x01x"[..]).unwrap();
        assert_eq!(unknown.message, None);
    }
}
